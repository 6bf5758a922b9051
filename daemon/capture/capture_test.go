package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/gopacket/pcapgo"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
)

// need leaves a test out when the machine lacks something; with MR_TEST_REQUIRE=all that is a failure.
func need(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if os.Getenv("MR_TEST_REQUIRE") == "all" {
		t.Fatalf("%s: %v", what, err)
	}
	t.Skipf("needs %s: %v", what, err)
}

type wire struct{ in []pkt.Packet }

func (w *wire) Caps() device.PortCaps                    { return device.PortCaps{Name: "test:", Kind: "test"} }
func (w *wire) SetAddrs([]netip.Addr)                    {}
func (w *wire) LinkUp() bool                             { return true }
func (w *wire) NextWake() mono.Time                      { return mono.Never }
func (w *wire) FDs() []int                               { return nil }
func (w *wire) Stats() device.PortStats                  { return device.PortStats{} }
func (w *wire) Close() error                             { return nil }
func (w *wire) TxBurst(_ mono.Time, ps []pkt.Packet) int { return max(0, len(ps)-1) }
func (w *wire) RxBurst(_ mono.Time, ps []pkt.Packet) int { return copy(ps, w.in) }

type file struct {
	bytes.Buffer
	closed bool
	fail   bool
	block  chan struct{}
}

func (f *file) Write(b []byte) (int, error) {
	if f.block != nil {
		<-f.block
	}
	if f.fail {
		return 0, errors.New("no space left on device")
	}
	return f.Buffer.Write(b)
}

func (f *file) Close() error { f.closed = true; return nil }

// roce is a packet with a sane BTH and n bytes after it.
func roce(opcode byte, src, dst string, n int) pkt.Packet {
	b := append(make([]byte, 12), bytes.Repeat([]byte{0xa5}, n)...)
	b[0] = opcode
	binary.BigEndian.PutUint16(b[2:], 0xffff)
	binary.BigEndian.PutUint32(b[4:], 17)
	binary.BigEndian.PutUint32(b[8:], 100)
	return pkt.Packet{Data: b, Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), SrcPort: 0xc123, TOS: 2}
}

func ethernet() pkt.Packet { // an ARP request
	return pkt.Packet{Kind: pkt.Ethernet, Data: []byte("\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x01\x08\x06" +
		"\x00\x01\x08\x00\x06\x04\x00\x01\x02\x00\x00\x00\x00\x01\x0a\x00\x00\x01\x00\x00\x00\x00\x00\x00\x0a\x00\x00\x02")}
}

func finish(t *testing.T, c *Capture) Stats {
	t.Helper()
	c.Stop()
	select {
	case <-c.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the writer does not end")
	}
	return c.Stats()
}

func TestCapture(t *testing.T) {
	var w0, w1 wire
	p0, p1 := Wrap(&w0, "a/mr0 plane 0"), Wrap(&w1, "a/mr0 plane 1")
	ps := []pkt.Packet{roce(4, "10.0.0.1", "10.0.0.2", 68), roce(0xc4, "fd00::1", "fd00::2", 101), ethernet(), roce(4, "10.0.0.1", "10.0.0.2", 4)}
	p0.TxBurst(0, ps) // nothing runs
	w1.in = []pkt.Packet{roce(0x11, "10.0.0.2", "10.0.0.1", 8)}

	f := &file{}
	wall := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	c, err := Start(f, Options{}, 1000, wall, p0, p1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Start(&file{}, Options{}, 1000, wall, p1); !errors.Is(err, ErrBusy) {
		t.Error("a second capture of a plane:", err)
	}
	if n := p0.TxBurst(1001, ps); n != 3 { // the wire takes all but the last
		t.Error(n)
	}
	var got [8]pkt.Packet
	if n := p1.RxBurst(2_000_001_000, got[:]); n != 1 {
		t.Error(n)
	}
	if s := finish(t, c); s != (Stats{Packets: 4}) || c.Err() != nil || !f.closed {
		t.Error(s, c.Err(), f.closed)
	}
	p0.TxBurst(0, ps) // nothing runs again

	r, err := pcapgo.NewNgReader(&f.Buffer, pcapgo.NgReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct{ ns, intf, length int }{{1, 0, 42 + 80}, {1, 0, 62 + 113}, {1, 0, 42}, {2_000_000_000, 1, 42 + 20}} {
		data, ci, err := r.ReadPacketData()
		if err != nil || int(ci.Timestamp.Sub(wall)) != want.ns || ci.InterfaceIndex != want.intf || len(data) != want.length || ci.Length != want.length {
			t.Errorf("packet %d: %v %+v", i, err, ci)
		}
	}
	if _, _, err := r.ReadPacketData(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if i, err := r.Interface(1); err != nil || i.Name != "a/mr0 plane 1" {
		t.Error(i.Name, err)
	}
}

// Wireshark's own view: every packet is RoCEv2 with a sane BTH, nothing is malformed, checksums are right.
func TestTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	need(t, "tshark", err)
	name := filepath.Join(t.TempDir(), "t.pcapng")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	p := Wrap(&wire{}, "plane 0")
	c, err := Start(f, Options{}, 0, time.Now(), p)
	if err != nil {
		t.Fatal(err)
	}
	var ps []pkt.Packet
	for n := 24; n < 200; n += 4 { // Wireshark tries shorter RC SENDs as RPC over RDMA, and stumbles
		ps = append(ps, roce(4, "10.0.0.1", "10.0.0.2", n), roce(4, "fd00::1", "ff0e::77", n), roce(0xc0, "10.0.0.1", "239.1.2.3", n), roce(0xc0, "fd00::1", "fd00::2", n))
	}
	p.TxBurst(1, append(ps, ethernet()))
	if s := finish(t, c); s.Packets != uint64(len(ps)) || s.Lost != 0 || c.Err() != nil {
		t.Fatal(s, c.Err())
	}
	run := func(args ...string) string {
		cmd := exec.Command(tshark, append([]string{"-r", name, "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"}, args...)...)
		cmd.WaitDelay = 30 * time.Second
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("tshark: %v", err)
		}
		return string(out)
	}
	out := run("-T", "fields", "-e", "udp.dstport", "-e", "infiniband.bth.destqp", "-e", "frame.interface_name", "-e", "ip.checksum.status", "-e", "udp.checksum.status", "-e", "_ws.malformed", "-e", "infiniband.bth.psn")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != len(ps) {
		t.Fatal(len(lines), "lines")
	}
	for i, l := range lines {
		want := "4791\t0x000011\tplane 0\t1\t3\t\t100" // checksum: good; of UDP: not there
		if i%2 == 1 {
			want = "4791\t0x000011\tplane 0\t\t1\t\t100"
		}
		if strings.TrimSpace(l) != want {
			t.Errorf("packet %d: %q, want %q", i, l, want)
		}
	}
	if out := run("-Y", "_ws.malformed or _ws.expert.severity >= 0x600000"); out != "" {
		t.Errorf("tshark complains:\n%s", out)
	}
}

// A writer that is behind, or a full disk, costs packets, never the loop.
func TestSlowAndFullDisk(t *testing.T) {
	p := Wrap(&wire{}, "plane 0")
	f := &file{}
	c, err := Start(f, Options{Buffer: 1 << 16}, 0, time.Now(), p)
	if err != nil {
		t.Fatal(err)
	}
	ps := make([]pkt.Packet, 101)
	for i := range ps {
		ps[i] = roce(4, "10.0.0.1", "10.0.0.2", 4000)
	}
	for range 10 {
		p.TxBurst(1, ps)
	}
	s := finish(t, c)
	if s.Packets != 1000 || s.Lost == 0 || s.Packets-s.Lost != c.written {
		t.Error(s, c.written)
	}

	f = &file{block: make(chan struct{}, 1)}
	f.block <- struct{}{} // the header passes
	if c, err = Start(f, Options{}, 0, time.Now(), p); err != nil {
		t.Fatal(err)
	}
	f.fail = true
	close(f.block)
	p.TxBurst(1, ps)
	if s := finish(t, c); c.Err() == nil || s.Packets != 100 {
		t.Error("a full disk went unnoticed", s, c.Err())
	}
	if _, err := Start(&file{fail: true}, Options{}, 0, time.Now(), p); err == nil {
		t.Error("a capture into nothing started")
	}
}

// The ring against a simple model, over its end many times, with a reader at another pace.
func TestRing(t *testing.T) {
	r := newRing(1)
	var want []int
	put, got := 0, 0
	for i := range 50_000 {
		p := pkt.Packet{Data: bytes.Repeat([]byte{byte(put)}, put*37%5000), SrcPort: uint16(put)}
		if r.put(mono.Time(put), 3, 0, &p) {
			want = append(want, len(p.Data))
		}
		put++
		for range i % 3 {
			rec, ok := r.get()
			if !ok {
				if got != len(want) {
					t.Fatal("empty too early")
				}
				break
			}
			if len(rec.data) != want[got] || rec.length != want[got] || rec.srcPort != uint16(rec.time) || rec.port != 3 {
				t.Fatalf("record %d: %d bytes, want %d", got, len(rec.data), want[got])
			}
			for _, b := range rec.data {
				if b != byte(rec.time) {
					t.Fatal("bytes")
				}
			}
			got++
			r.release()
		}
	}
	if got < 1000 {
		t.Error("only", got)
	}
}

func TestSnapLen(t *testing.T) {
	p := Wrap(&wire{}, "plane 0")
	f := &file{}
	c, err := Start(f, Options{SnapLen: 16}, 0, time.Now(), p)
	if err != nil {
		t.Fatal(err)
	}
	p.TxBurst(0, []pkt.Packet{roce(4, "fd00::1", "fd00::2", 1000), {}})
	finish(t, c)
	r, err := pcapgo.NewNgReader(&f.Buffer, pcapgo.NgReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if data, ci, err := r.ReadPacketData(); err != nil || len(data) != 62+16 || ci.Length != 62+1012 {
		t.Error(err, ci)
	}
}

func TestNoAllocation(t *testing.T) {
	p := Wrap(&wire{}, "plane 0")
	ps := []pkt.Packet{roce(4, "10.0.0.1", "10.0.0.2", 1000), {}}
	if n := testing.AllocsPerRun(100, func() { p.TxBurst(0, ps) }); n != 0 {
		t.Errorf("off: %v allocations", n)
	}
	c := &Capture{ring: newRing(1)}
	if n := testing.AllocsPerRun(100, func() { c.record(0, 0, ps[:1]) }); n != 0 {
		t.Errorf("on: %v allocations", n)
	}
}

func BenchmarkRecord(b *testing.B) {
	for _, size := range []int{1024, 4096} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			c := &Capture{ring: newRing(defaultBuffer)}
			ps := []pkt.Packet{roce(4, "10.0.0.1", "10.0.0.2", size)}
			b.SetBytes(int64(size))
			for b.Loop() {
				c.record(0, 0, ps)
				c.ring.get()
				c.ring.release()
			}
		})
	}
}

// TestTwoLoops: ports of NICs on several loops are captured into one file; every packet is there.
func TestTwoLoops(t *testing.T) {
	ports := []*Port{Wrap(&wire{}, "a/mr0 plane 0"), Wrap(&wire{}, "a/mr1 plane 0")}
	c, err := Start(&file{}, Options{}, 0, time.Now(), ports...)
	need(t, "start", err)
	const bursts = 2000
	var wg sync.WaitGroup
	for i, p := range ports {
		wg.Go(func() {
			ps := []pkt.Packet{roce(4, "10.0.0.1", "10.0.0.2", 100+i), roce(4, "10.0.0.1", "10.0.0.2", 100+i), roce(4, "10.0.0.1", "10.0.0.2", 100+i)}
			for range bursts {
				p.TxBurst(1, ps) // this wire takes two
			}
		})
	}
	wg.Wait()
	if s := finish(t, c); s.Packets != 2*2*bursts || s.Lost != 0 || c.written != s.Packets {
		t.Errorf("%+v, %d in the file", s, c.written)
	}
}
