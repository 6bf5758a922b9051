package impair

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"testing"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
)

// wire is a driver that keeps what is sent and gives what the test put in. It takes at most limit packets a call.
type wire struct {
	sent    []string
	tos     []uint8
	in      []string
	rx      [pkt.Burst][]byte
	limit   int
	discard bool
}

func (w *wire) Caps() device.PortCaps   { return device.PortCaps{Name: "test:0", PacketMax: 1000} }
func (w *wire) SetAddrs([]netip.Addr)   {}
func (w *wire) LinkUp() bool            { return true }
func (w *wire) NextWake() mono.Time     { return mono.Never }
func (w *wire) FDs() []int              { return nil }
func (w *wire) Stats() device.PortStats { return device.PortStats{} }
func (w *wire) Close() error            { return nil }
func (w *wire) TxBurst(_ mono.Time, ps []pkt.Packet) int {
	n := min(len(ps), w.limit)
	for i := range ps[:n] {
		if len(ps[i].Buf) < pkt.Headroom || &ps[i].Buf[pkt.Headroom] != &ps[i].Data[0] {
			panic("no headroom")
		}
		if !w.discard {
			w.sent = append(w.sent, string(ps[i].Data))
			w.tos = append(w.tos, ps[i].TOS)
		}
	}
	return n
}

func (w *wire) RxBurst(_ mono.Time, ps []pkt.Packet) int {
	n := min(len(ps), len(w.in))
	for i := range n {
		w.rx[i] = append(w.rx[i][:0], w.in[i]...)
		ps[i] = pkt.Packet{Data: w.rx[i], TOS: pkt.ECT0}
	}
	if !w.discard {
		w.in = w.in[n:]
	}
	return n
}

func batch(from, n int) *pkt.Batch {
	b := pkt.NewBatch(n, 1000)
	for i := range n {
		p := b.Next()
		p.Data = binary.BigEndian.AppendUint32(p.Data, uint32(from+i))
		p.TOS = pkt.ECT0
	}
	return b
}

func mustSet(t testing.TB, p *Port, now mono.Time, words ...string) {
	t.Helper()
	s, err := Parse(words)
	if err == nil {
		err = p.Set(now, s)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func ids(ss []string) (out []int) {
	for _, s := range ss {
		out = append(out, int(binary.BigEndian.Uint32([]byte(s))))
	}
	return out
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		words []string
		want  Spec
		print string
	}{
		{nil, Spec{}, "clear"},
		{[]string{"loss=1%", "burst=8"}, Spec{Tx: link.Spec{Loss: .01, Burst: 8}}, "loss=1% burst=8"},
		{[]string{"delay=20us", "jitter=1.5µs", "rx.loss=5%"}, Spec{Tx: link.Spec{Delay: 20_000, Jitter: 1500}, Rx: link.Spec{Loss: .05}}, "delay=20us jitter=1500ns rx.loss=5%"},
		{[]string{"reorder=1%:50us", "dup=2%", "corrupt=0.1%"}, Spec{Tx: link.Spec{Reorder: .01, ReorderBy: 50_000, Duplicate: .02, Corrupt: .001}}, "reorder=1%:50us dup=2% corrupt=0.1%"},
		{[]string{"rate=10Gbit", "queue=256KiB", "ecn=64KiB:192KiB"}, Spec{Tx: link.Spec{RateBps: 1e10, Queue: 256 << 10, ECNMin: 64 << 10, ECNMax: 192 << 10}}, "rate=10Gbit queue=256KiB ecn=64KiB:192KiB"},
		{[]string{"rate=2.5gbit/s"}, Spec{Tx: link.Spec{RateBps: 25e8, Queue: DefaultQueue}}, "rate=2500Mbit queue=256KiB"},
		{[]string{"down"}, Spec{Tx: link.Spec{Down: true}, Rx: link.Spec{Down: true}}, "down"},
		{[]string{"down", "rx.up"}, Spec{Tx: link.Spec{Down: true}}, "tx.down"},
		{[]string{"loss=5%", "clear", "delay=0", "ecn=0"}, Spec{}, "clear"},
	} {
		s, err := Parse(c.words)
		if err != nil || s != c.want || s.String() != c.print {
			t.Errorf("%v: %+v %v %q", c.words, s, err, s)
		}
		if c.print == "clear" {
			continue
		}
		if again, err := Parse([]string{"clear"}); err != nil || again != (Spec{}) {
			t.Error("clear")
		}
	}
	base, _ := Parse([]string{"loss=1%", "delay=5us"})
	if s, err := base.Parse([]string{"loss=0%"}); err != nil || s.Tx.Loss != 0 || s.Tx.Delay != 5000 {
		t.Error("words must change only what they name", s, err)
	}
}

func TestParseErrors(t *testing.T) {
	for _, c := range []struct{ word, want string }{
		{"los=1%", `impair: unknown word "los", did you mean "loss"?`},
		{"dealy=1us", `impair: unknown word "dealy", did you mean "delay"?`},
		{"rx.doen", `impair: unknown word "rx.doen", did you mean "down"?`},
		{"loss", `impair: "loss" needs a value: share of packets lost: loss=1%`},
		{"loss=1", `impair: loss: "1" needs a percent sign: 1% or 100%`},
		{"loss=101%", `impair: loss: "101%" is not within 0% and 100%`},
		{"delay=20", `impair: delay: "20" is not a time such as 20us`},
		{"rate=10Gibt", `impair: rate: "10Gibt" is not a rate such as 10Gbit`},
		{"queue=abc", `impair: queue: "abc" is not a size such as 256KiB`},
		{"ecn=64KiB:1KiB", `impair: tx: link: ECN marking begins at 65536 bytes but is full at 1024`},
		{"down=1", `impair: "down=1": down, up and clear take no value, clear no direction`},
		{"burst=x", `impair: burst: "x" is not a number of packets such as 8`},
	} {
		if _, err := Parse([]string{c.word}); err == nil || err.Error() != c.want {
			t.Errorf("%s: %v", c.word, err)
		}
	}
}

func TestPassThrough(t *testing.T) {
	w := &wire{limit: 3}
	p := Wrap(w, 1)
	if n := p.TxBurst(0, batch(0, 5).Pkts); n != 3 || len(w.sent) != 3 {
		t.Fatal(n, w.sent)
	}
	w.in = []string{"abcd", "efgh"}
	var ps [4]pkt.Packet
	if n := p.RxBurst(0, ps[:]); n != 2 || p.NextWake() != mono.Never || p.Unwrap() != device.Port(w) {
		t.Fatal(n)
	}
}

// Loss alone, with a wire that is often full: the ratio holds, order holds, nothing is sent twice.
func TestLossWithBackpressure(t *testing.T) {
	for _, words := range [][]string{{"loss=10%"}, {"loss=10%", "burst=4"}} {
		w := &wire{}
		p := Wrap(w, 3)
		mustSet(t, p, 0, words...)
		const n = 50_000
		for i, now := 0, mono.Time(0); i < n; now++ {
			w.limit = int(now % 7)
			b := batch(i, min(1+int(now)%64, n-i))
			took := p.TxBurst(now, b.Pkts)
			if took < 0 || took > b.N {
				t.Fatal(took)
			}
			i += took
		}
		last := -1
		for _, id := range ids(w.sent) {
			if id <= last {
				t.Fatal("order", id, last)
			}
			last = id
		}
		if got := 1 - float64(len(w.sent))/n; math.Abs(got-.1) > .01 {
			t.Errorf("%v: lost %v", words, got)
		}
	}
}

func TestDelayAndFullWire(t *testing.T) {
	w := &wire{limit: 0}
	p := Wrap(w, 1)
	mustSet(t, p, 100, "delay=1us", "dup=100%")
	b := batch(0, 40)
	if n := p.TxBurst(100, b.Pkts); n != 40 || p.NextWake() != 1100 {
		t.Fatal(n, p.NextWake())
	}
	for i := range b.Pkts {
		b.Pkts[i].Data[3] = 0xff // ours to overwrite once taken
	}
	p.RxBurst(1000, nil)
	w.limit = 7
	p.RxBurst(1100, nil)
	if len(w.sent) != 7 || p.NextWake() > 1100+20_000 {
		t.Fatal(len(w.sent), p.NextWake())
	}
	for now := mono.Time(1200); now < 3000; now += 100 {
		p.RxBurst(now, nil)
	}
	if len(w.sent) != 80 || p.NextWake() != mono.Never {
		t.Fatal(len(w.sent))
	}
	for i, id := range ids(w.sent) {
		if id != i/2 {
			t.Fatal("order", ids(w.sent))
		}
	}
	if len(p.tx.free) != len(p.tx.packets) {
		t.Error("buffers lost", len(p.tx.free))
	}
}

func TestReceive(t *testing.T) {
	w := &wire{}
	p := Wrap(w, 1)
	mustSet(t, p, 0, "rx.delay=1us", "rx.dup=50%", "rx.corrupt=100%")
	sent := map[string]int{}
	var ps [3]pkt.Packet // smaller than a burst: the rest must wait
	got := 0
	for now := mono.Time(0); now < 200_000; now += 100 {
		if now < 100_000 {
			s := fmt.Sprintf("%08d", now)
			w.in = append(w.in, s)
			sent[s] = 0
		}
		n := p.RxBurst(now, ps[:])
		for i := range n {
			if ps[i].Time != now {
				t.Fatal("time")
			}
			hit := ""
			for s := range sent {
				d := 0
				for j := range s {
					d += bits.OnesCount8(s[j] ^ ps[i].Data[j])
				}
				if d == 1 {
					hit = s
				}
			}
			if hit == "" {
				t.Fatalf("%q has not exactly one wrong bit", ps[i].Data)
			}
			got++
		}
	}
	tx, rx := p.Counters()
	if got != int(rx.Delivered) || got < 1400 || got > 1600 || tx.Sent != 0 {
		t.Error("received", got, rx)
	}
	p.RxBurst(300_000, ps[:])
	if len(p.rx.free) != len(p.rx.packets) {
		t.Error("buffers lost", len(p.rx.free), len(p.rx.packets))
	}
}

func TestRateMarksAndDown(t *testing.T) {
	w := &wire{limit: 64}
	p := Wrap(w, 1)
	mustSet(t, p, 0, "rate=32Mbit", "queue=100B", "ecn=40B:40B") // a packet of 4 bytes takes 1 µs
	for i := 0; i < 64; i += 32 {
		p.TxBurst(0, batch(i, 32).Pkts)
	}
	p.RxBurst(1_000_000, nil)
	if len(w.sent) != 25 || p.Stats().Drops["impair_tx_queue_full"] != 39 {
		t.Error(len(w.sent), p.Stats().Drops)
	}
	for i, tos := range w.tos {
		if (tos == pkt.CE) != (i > 10) {
			t.Errorf("packet %d: TOS %d", i, tos)
		}
	}
	mustSet(t, p, 1_000_000, "down")
	w.sent = nil
	w.in = []string{"abcd"}
	var ps [4]pkt.Packet
	if p.LinkUp() || p.TxBurst(1_000_001, batch(0, 4).Pkts) != 4 || p.RxBurst(1_000_001, ps[:]) != 0 || w.sent != nil {
		t.Error("down")
	}
	mustSet(t, p, 1_000_010, "up")
	if n := p.TxBurst(1_000_010, batch(0, 4).Pkts); !p.LinkUp() || n != 4 || len(w.sent) != 4 {
		t.Error("up", n, len(w.sent))
	}
}

func TestNoAllocation(t *testing.T) {
	for _, words := range [][]string{nil, {"loss=10%", "rx.loss=10%"}, {"delay=1us", "rx.delay=2us", "dup=10%", "rx.reorder=10%", "corrupt=5%"}} {
		w := &wire{limit: 64, discard: true, in: []string{"abcd", "efgh"}}
		p := Wrap(w, 1)
		mustSet(t, p, 0, words...)
		b := batch(0, 32)
		var ps [pkt.Burst]pkt.Packet
		now := mono.Time(0)
		step := func() {
			now += 500
			p.TxBurst(now, b.Pkts)
			p.RxBurst(now, ps[:])
		}
		step()
		if n := testing.AllocsPerRun(1000, step); n != 0 {
			t.Errorf("%v: %v allocations", words, n)
		}
	}
}

func BenchmarkTx(bm *testing.B) {
	for _, words := range [][]string{nil, {"loss=1%"}, {"loss=1%", "delay=20us"}} {
		bm.Run(fmt.Sprint(words), func(bm *testing.B) {
			w := &wire{limit: 64, discard: true}
			p := Wrap(w, 1)
			mustSet(bm, p, 0, words...)
			b := batch(0, 64)
			now := mono.Time(0)
			for n := 0; n < bm.N; n += 64 {
				now += 20_000
				p.TxBurst(now, b.Pkts)
			}
		})
	}
}
