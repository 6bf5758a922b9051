package device_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/transport"
)

// portCounters is all of a NIC's by file name.
func portCounters(n *device.NIC) map[string]uint64 {
	m := map[string]uint64{}
	counters, hw := n.PortCounters()
	for _, c := range counters {
		m["counters/"+c.Name] = c.Value
	}
	for _, c := range hw {
		m["hw_counters/"+c.Name] = c.Value
	}
	return m
}

// TestF11PortCounters: what a program moves is counted, on both ends, in the words of sysfs, over either protocol.
func TestF11PortCounters(t *testing.T) {
	for name, policy := range map[string]device.Policy{"metaroce": device.OnlyMetaRoCE, "rocev2": device.OnlyRoCEv2} {
		t.Run(name, func(t *testing.T) {
			w := newWorldOf(t, false, policy)
			a, b, qa, _ := w.pair(t)
			const size = 20_000
			for i, op := range []uint8{hostq.WRWrite, hostq.WRRead, hostq.WRFetchAdd} {
				n := uint32(size)
				if op == hostq.WRFetchAdd {
					n = 8
				}
				qa.SQ.PutSend(hostq.SQE{WRID: uint64(i), Opcode: op, RKey: b.mr.Key(), RemoteAddr: ramBase, Flags: hostq.SendSignaled}, nil, a.sge(0, n))
				qa.SQ.Ring()
				w.want(a, uint64(i), transport.OK)
			}
			w.step(1000)
			at, bt := portCounters(a.nic), portCounters(b.nic)
			for _, c := range []string{"rx_write_requests", "rx_read_requests", "rx_atomic_requests"} {
				if at["hw_counters/"+c] != 0 || bt["hw_counters/"+c] != 1 {
					t.Errorf("%s: %d at the requester, %d at the responder", c, at["hw_counters/"+c], bt["hw_counters/"+c])
				}
			}
			if x, r := at["counters/port_xmit_data"], bt["counters/port_rcv_data"]; x != r || 4*x < size || 10*4*x > 13*size {
				t.Errorf("%d words sent, %d received", x, r)
			}
			if x, r := at["counters/port_xmit_packets"], bt["counters/unicast_rcv_packets"]; x != r || x == 0 {
				t.Errorf("%d packets sent, %d received", x, r)
			}
			for c, v := range at {
				if v != 0 && regexp.MustCompile("err|drop|discard|sequence|downed").MatchString(c) {
					t.Errorf("%s = %d", c, v)
				}
			}
			// A WRITE under a key that is none.
			qa.SQ.PutSend(hostq.SQE{WRID: 9, Opcode: hostq.WRWrite, RKey: 1, RemoteAddr: ramBase, Flags: hostq.SendSignaled}, nil, a.sge(0, size))
			qa.SQ.Ring()
			w.want(a, 9, transport.RemAccessErr)
			at, bt = portCounters(a.nic), portCounters(b.nic)
			if at["hw_counters/req_remote_access_errors"] != 1 || at["hw_counters/req_cqe_error"] != 1 || bt["hw_counters/resp_remote_access_errors"] != 1 {
				t.Errorf("bad key: %v", at)
			}
		})
	}
}

// TestPortDown: the port is down when the last plane is.
func TestPortDown(t *testing.T) {
	w := newWorld(t, false)
	n := w.nics[0]
	if !n.Up() || portCounters(n)["counters/link_downed"] != 0 {
		t.Fatal("not up at the beginning")
	}
	n.SetPlane(w.now, 0, false)
	if n.Up() || portCounters(n)["counters/link_downed"] != 1 || portCounters(n)["hw_counters/link_downed"] != 1 {
		t.Error("not down")
	}
	n.SetPlane(w.now, 0, true)
	if !n.Up() || portCounters(n)["counters/link_downed"] != 1 {
		t.Error("not up again")
	}
}

// TestPortCounterDocs: docs/view.md says what each counter stands for, and names none twice.
func TestPortCounterDocs(t *testing.T) {
	text, err := os.ReadFile("../docs/view.md")
	if err != nil {
		t.Fatal(err)
	}
	counters, hw := device.PortCounterNames()
	seen := map[string]bool{}
	for _, c := range counters {
		seen[c] = true
	}
	if len(seen) != len(counters) {
		t.Error("a name is there twice")
	}
	clear(seen)
	for _, c := range hw {
		if seen[c] {
			t.Errorf("%s is there twice", c)
		}
		seen[c] = true
	}
	for _, c := range append(counters, hw...) {
		if !regexp.MustCompile("`" + c + "`").Match(text) {
			t.Errorf("docs/view.md does not say what %s stands for", c)
		}
	}
}

// TestRateText: every rate is shown as the kernel prints it.
func TestRateText(t *testing.T) {
	for bps, want := range map[uint64]string{0: "100 Gb/sec (4X EDR)", 1e9: "10 Gb/sec (4X)", 20e9: "25 Gb/sec (1X EDR)", 40e9: "40 Gb/sec (4X QDR)",
		50e9: "50 Gb/sec (1X HDR)", 200e9: "200 Gb/sec (4X HDR)", 400e9: "400 Gb/sec (4X NDR)", 800e9: "800 Gb/sec (8X NDR)", 5e12: "1200 Gb/sec (12X NDR)"} {
		if got := device.RateText(bps); got != want {
			t.Errorf("%d: %q, want %q", bps, got, want)
		}
	}
}
