//go:build live

package live

import (
	"encoding/binary"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket/pcapgo"

	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

// group is a multicast group as perftest wants it: the GID's bytes.
const group = "0:0:0:0:0:0:0:0:0:0:255:255:239:1:2:3"

// TestUD: datagrams of Debian's programs over every wire, checked, one way and both, to a group as well.
func TestUD(t *testing.T) {
	needProgram(t, "ibv_ud_pingpong", "ib_send_bw", "ib_send_lat")
	for _, wire := range []string{"mem", "udp", "tap"} {
		t.Run(wire, func(t *testing.T) {
			l := up(t, spec{wire: wire})
			l.pingpong(t, "ibv_ud_pingpong", "-c", "-n", "500")
			l.pingpong(t, "ibv_ud_pingpong", "-e", "-s", "100", "-n", "500")
			// Few enough for the receives that perftest posts first, and for the queue of a TAP: what is lost is not sent again,
			// and perftest waits for it.
			for _, args := range [][]string{
				{"ib_send_bw", "-a", "-n", "200"}, {"ib_send_bw", "-s", "1024", "-q", "4", "-n", "200"}, {"ib_send_bw", "-s", "16", "-b", "-n", "400"},
				{"ib_send_bw", "-s", "512", "-e", "-n", "400"}, {"ib_send_bw", "-g", "-M", group, "-n", "400"},
				{"ib_send_lat", "-s", "4096", "-n", "200"}, {"ib_send_lat", "-a", "-n", "50"},
			} {
				_, out := l.pair(t, 60*time.Second, "a", "b", args[0], append(args[1:], "-c", "UD")...)
				if rows := table(out); len(rows) == 0 || rows[len(rows)-1].iterations == 0 {
					t.Errorf("%v: no table\n%s", args, brief(out))
				}
			}
			if n := l.counter(t, "a/mr0", "mroce_engine_tx_packets_total"); n != 0 {
				t.Errorf("%d MetaRoCE packets for datagrams", n)
			}
			if n := l.counter(t, "b/mr0", "mroce_rocev2_drop_icrc_total"); n != 0 {
				t.Errorf("%d wrong ICRCs", n)
			}
		})
	}
}

// TestTransports: connections between NICs of each policy, over every wire. Whoever can only do RoCEv2 gets it, with
// nothing configured at the other end, whichever end begins.
func TestTransports(t *testing.T) {
	needProgram(t, "ibv_rc_pingpong", "ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_atomic_bw", "ib_write_lat")
	for _, c := range []struct{ wire, a, b, used string }{
		{"mem", "rocev2", "rocev2", "rocev2"}, {"tap", "rocev2", "auto", "rocev2"}, {"udp", "auto", "rocev2", "rocev2"},
		{"mem", "auto", "rocev2", "rocev2"}, {"udp", "rocev2", "rocev2", "rocev2"}, {"tap", "auto", "auto", "metaroce"}, {"mem", "metaroce", "auto", "metaroce"},
	} {
		t.Run(strings.Join([]string{c.wire, c.a, c.b}, "-"), func(t *testing.T) {
			l := up(t, spec{wire: c.wire, hosts: "  a: {addr: 10.0.0.1/24, transport: " + c.a + "}\n  b: {addr: 10.0.0.2/24, transport: " + c.b + "}\n"})
			l.pingpong(t, "ibv_rc_pingpong", "-c", "-n", "300")
			for _, args := range [][]string{
				{"ib_write_bw", "-n", "500"}, {"ib_read_bw", "-n", "300"}, {"ib_send_bw", "-b", "-q", "4", "-n", "200"}, {"ib_atomic_bw", "-n", "200"},
				{"ib_write_lat", "-s", "8", "-n", "200"}, {"ib_send_bw", "-s", "1000001", "-n", "30", "-e"},
			} {
				l.pair(t, 60*time.Second, "a", "b", args[0], args[1:]...)
			}
			_, out := l.startPair(t, 30*time.Second, "a", "b", "ib_write_bw", "-D", "4")
			eventually(t, 10*time.Second, "QPs of "+c.used, func() (bool, string) { return l.transports(t, c.used) })
			out.wait(t)
			mr, ibs := l.counter(t, "b/mr0", "mroce_engine_rx_acks_total"), l.counter(t, "b/mr0", "mroce_rocev2_rx_acks_total")
			if mr > 0 != (c.used == "metaroce") || ibs > 0 != (c.used == "rocev2") {
				t.Errorf("%d acknowledgements of MetaRoCE, %d of RoCEv2", mr, ibs)
			}
		})
	}
}

// TestStaysMetaRoCE: loss of a fifth of all packets does not make two MetaRoCE NICs fall back for good.
func TestStaysMetaRoCE(t *testing.T) {
	needProgram(t, "ib_write_bw")
	l := up(t, spec{wire: "mem", impair: "  - {loss: 20%}\n"})
	for range 5 {
		l.pair(t, 60*time.Second, "a", "b", "ib_write_bw", "-s", "4096", "-n", "200")
		l.pair(t, 60*time.Second, "b", "a", "ib_send_bw", "-s", "4096", "-n", "200", "-b")
	}
	if n := l.counter(t, "a/mr0", "mroce_engine_rx_acks_total"); n == 0 {
		t.Error("no acknowledgement of MetaRoCE")
	}
}

// TestRoCEv2ICRC: what a capture shows of RoCEv2 has right ICRCs, sent and received, on every wire.
func TestRoCEv2ICRC(t *testing.T) {
	needProgram(t, "ib_write_bw", "ib_send_bw", "ib_read_bw")
	for _, wire := range []string{"tap", "udp", "mem"} {
		t.Run(wire, func(t *testing.T) {
			l := up(t, spec{wire: wire, extra: "transport: rocev2\n"})
			file := filepath.Join(l.dir, "a.pcapng")
			capture := &job{name: "capture", cmd: l.command(30*time.Second, "lab", "capture", "a", "-w", file)}
			capture.cmd.Stdout, capture.cmd.Stderr = &capture.out, &capture.out
			capture.begin(t)
			time.Sleep(500 * time.Millisecond)
			l.pair(t, 20*time.Second, "a", "b", "ib_write_bw", "-s", "5000", "-n", "50")
			l.pair(t, 20*time.Second, "b", "a", "ib_read_bw", "-s", "5000", "-n", "50")
			l.pair(t, 20*time.Second, "a", "b", "ib_send_bw", "-c", "UD", "-s", "1001", "-n", "50")
			l.pair(t, 20*time.Second, "a", "b", "ib_send_bw", "-c", "UD", "-n", "50", "-g", "-M", group)
			if err := capture.cmd.Process.Signal(sigterm); err != nil {
				t.Fatal(err)
			}
			<-capture.done
			n := 0
			for _, p := range rocePackets(t, file) {
				var s ib.Summer
				if !s.Good(&p) {
					t.Fatalf("packet %d, opcode %#x from %v to %v port %d: wrong ICRC", n, p.Data[0], p.Src, p.Dst, p.SrcPort)
				}
				n++
			}
			if n < 300 {
				t.Errorf("only %d packets", n)
			}
		})
	}
}

// rocePackets reads the IPv4 packets to UDP port 4791 of a capture.
func rocePackets(t testing.TB, file string) (out []pkt.Packet) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	for {
		b, _, err := r.ReadPacketData()
		if err != nil {
			return out
		}
		const head = 14 + 20 + 8
		if len(b) < head+ib.MinPacket || binary.BigEndian.Uint16(b[12:]) != 0x0800 || b[23] != 17 || binary.BigEndian.Uint16(b[36:]) != 4791 {
			continue
		}
		ip := b[14:34]
		p := pkt.Packet{Src: netip.AddrFrom4([4]byte(ip[12:])), Dst: netip.AddrFrom4([4]byte(ip[16:])), SrcPort: binary.BigEndian.Uint16(b[34:]),
			IPID: binary.BigEndian.Uint16(ip[4:]), NoDF: ip[6]&0x40 == 0, Data: append([]byte(nil), b[head:]...)}
		out = append(out, p)
	}
}

// pingpong runs one of Debian's example programs on both hosts; both must succeed.
func (l *lab) pingpong(t testing.TB, program string, args ...string) {
	t.Helper()
	p := port()
	args = append([]string{program, "-g", "0", "-p", p}, args...)
	s := l.start(t, 30*time.Second, "a", args...)
	l.listening(t, "a", p, s)
	c := l.start(t, 30*time.Second, "b", append(args, addrOf["a"])...)
	if c.wait(t); t.Failed() {
		s.cmd.Process.Signal(sigterm)
	}
	s.wait(t)
}

// counter is a counter of a NIC's transport.
func (l *lab) counter(t testing.TB, nic, name string) int {
	t.Helper()
	for _, line := range strings.Split(l.nice(t, 10*time.Second, "stats", "--all"), "\n") {
		if f := fields(line); len(f) == 4 && f[0] == nic && f[2] == name {
			n, err := strconv.Atoi(strings.ReplaceAll(f[3], ",", ""))
			if err != nil {
				t.Fatal(line)
			}
			return n
		}
	}
	return 0
}

// transports reports whether there are connections and all of them travel as said.
func (l *lab) transports(t testing.TB, want string) (bool, string) {
	var s struct {
		NICs []struct {
			Name string `json:"name"`
			QPs  []struct{ Type, Transport, State string }
		} `json:"nics"`
	}
	l.json(t, &s, "status")
	found := 0
	for _, n := range s.NICs {
		for _, q := range n.QPs {
			if q.Type != "rc" || q.State != "RTS" && q.State != "RTR" { // perftest's server does not go further
				continue
			}
			if q.Transport != want {
				return false, n.Name + ": " + q.Transport
			}
			found++
		}
	}
	return found >= 2, strconv.Itoa(found) + " QPs"
}
