//go:build interop

package interop

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/metaroce/metaroce/transport/wire/ib"
)

// program is one row: what runs in both directions, and what must be seen on the wire then. perftest would have our NIC issue
// as many READs and atomics at a time as rxe says that it takes, 128; -o 16 is what our NIC can.
type program struct {
	words string // with few iterations: the VM is emulated
	v6    bool
	clean bool // without loss only: unreliable, or it would show nothing new
	// The opcodes that the client and the server must have sent.
	client, server []ib.Opcode
}

var programs = []program{
	{words: "ibv_rc_pingpong -c -s 3000 -n 20", client: []ib.Opcode{ib.SendFirst, ib.SendMiddle, ib.SendLast}, server: []ib.Opcode{ib.SendFirst, ib.SendMiddle, ib.SendLast}},
	{words: "ibv_ud_pingpong -c -s 1000 -n 20", clean: true, client: []ib.Opcode{ib.UDSend}, server: []ib.Opcode{ib.UDSend}},
	{words: "ib_write_bw -s 65536 -n 25", client: []ib.Opcode{ib.WriteFirst, ib.WriteMiddle, ib.WriteLast}, server: []ib.Opcode{ib.Ack}},
	{words: "ib_read_bw -o 16 -s 65536 -n 25", client: []ib.Opcode{ib.ReadRequest}, server: []ib.Opcode{ib.ReadRespFirst, ib.ReadRespMid, ib.ReadRespLast}},
	{words: "ib_send_bw -s 16384 -n 50", client: []ib.Opcode{ib.SendFirst, ib.SendMiddle, ib.SendLast}, server: []ib.Opcode{ib.Ack}},
	{words: "ib_atomic_bw -o 16 -n 100", client: []ib.Opcode{ib.FetchAdd}, server: []ib.Opcode{ib.AtomicAck}},

	{words: "ibv_rc_pingpong -c -s 3000 -n 20", v6: true},
	{words: "ibv_ud_pingpong -c -s 1000 -n 20", v6: true, clean: true},
	{words: "ib_write_bw -s 16384 -n 50", v6: true},
	{words: "ib_atomic_bw -o 16 -A CMP_AND_SWAP -n 100", client: []ib.Opcode{ib.CmpSwap}, server: []ib.Opcode{ib.AtomicAck}},
	{words: "ib_write_bw -m 1024 -s 8000 -n 100"},
	{words: "ib_write_bw -s 4096 -n 100 -q 4", client: []ib.Opcode{ib.WriteOnly}},
	{words: "ib_write_bw -s 65536 -n 25 -b", server: []ib.Opcode{ib.WriteFirst}},
	{words: "ib_read_bw -o 16 -s 1 -n 100", server: []ib.Opcode{ib.ReadRespOnly}},
	{words: "ib_send_bw -s 1000 -n 100 -b", client: []ib.Opcode{ib.SendOnly}, server: []ib.Opcode{ib.SendOnly}},
	{words: "ib_write_lat -s 64 -n 50", clean: true},
	{words: "ib_send_lat -s 8 -n 50"},
	{words: "ib_read_lat -o 16 -s 4096 -n 50", clean: true},
	{words: "ib_atomic_lat -o 16 -n 50", clean: true},
	{words: "ib_send_lat -c UD -s 512 -n 50", clean: true, client: []ib.Opcode{ib.UDSend}},
	{words: "ibv_uc_pingpong -c -s 3000 -n 20", clean: true, client: []ib.Opcode{uc(ib.SendFirst), uc(ib.SendMiddle), uc(ib.SendLast)}, server: []ib.Opcode{uc(ib.SendLast)}},
	{words: "ib_write_lat -c UC -s 9000 -n 30", clean: true, client: []ib.Opcode{uc(ib.WriteFirst), uc(ib.WriteLast)}, server: []ib.Opcode{uc(ib.WriteLast)}},
	{words: "ib_send_lat -c UC -s 512 -n 50", clean: true, client: []ib.Opcode{uc(ib.SendOnly)}},
	{words: "ib_write_bw -c UC -b -s 4096 -n 50", clean: true, client: []ib.Opcode{uc(ib.WriteOnly)}},
}

// uc is the opcode of UC on the wire.
func uc(o ib.Opcode) ib.Opcode { return o | ib.Opcode(ib.UC) }

// TestPrograms runs each program with the server on either side, on a good wire and on one that loses 1 % of the packets in
// both directions, and looks at every packet that crossed.
func TestPrograms(t *testing.T) {
	m := vm(t)
	for _, loss := range []string{"", "1%"} {
		name := "clean"
		if loss != "" {
			name = "loss=" + loss
		}
		t.Run(name, func(t *testing.T) { runPrograms(t, m, loss) })
	}
}

func runPrograms(t *testing.T, m *machine, loss string) {
	l := up(t, m, "rocev2")
	if loss != "" {
		l.impair(t, "loss="+loss, "rx.loss="+loss)
	}
	for _, p := range programs {
		if loss != "" && p.clean {
			continue
		}
		for _, dir := range []struct{ server, client side }{{m, l}, {l, m}} {
			name := fmt.Sprintf("%s to %v", strings.ReplaceAll(p.words, "-", ""), dir.server)
			if p.v6 {
				name += " IPv6"
			}
			t.Run(name, func(t *testing.T) {
				c := captureStart(t, m)
				_, out := pair(t, 90*time.Second, dir.server, dir.client, p.v6, strings.Fields(p.words)...)
				got := c.verify(t, p.v6)
				t.Logf("%s\n%v", results(out), got)
				for _, s := range []side{m, l} {
					if got.rocev2(s) == 0 {
						t.Errorf("%v sent nothing that the capture saw", s)
					}
				}
				sentBy(t, got, dir.client, p.client)
				sentBy(t, got, dir.server, p.server)
			})
		}
	}
	if lost := l.lost(t); loss != "" && (lost["tx"] == 0 || lost["rx"] == 0) {
		t.Errorf("no loss was injected: %v", lost)
	} else {
		t.Logf("packets lost on purpose: %v", lost)
	}
}

func sentBy(t *testing.T, got seen, from side, ops []ib.Opcode) {
	t.Helper()
	for _, op := range ops {
		if got[from.String()][op] == 0 {
			t.Errorf("%v sent no %v", from, op)
		}
	}
}

// results is what a program printed without its settings.
func results(out string) string {
	var b strings.Builder
	for line := range strings.Lines(out) {
		if strings.Contains(line, "#bytes") || strings.HasPrefix(strings.TrimLeft(line, " "), "1") || strings.Contains(line, "Mbit/sec") || strings.Contains(line, "usec/iter") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// lost asks how many packets the impairment of the NIC's wire has dropped, by direction.
func (l *lab) lost(t *testing.T) map[string]uint64 {
	t.Helper()
	var stats struct {
		NICs []struct {
			Planes []struct {
				Drops map[string]uint64 `json:"mroce_wire_drops_total"`
			}
		}
	}
	if err := json.Unmarshal([]byte(l.nice(t, 10*time.Second, "stats", "--json")), &stats); err != nil {
		t.Fatal(err)
	}
	sum := map[string]uint64{}
	for _, n := range stats.NICs {
		for _, p := range n.Planes {
			sum["tx"] += p.Drops["impair_tx_lost"]
			sum["rx"] += p.Drops["impair_rx_lost"]
		}
	}
	return sum
}
