//go:build interop

package interop

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/tools/bed"
	"github.com/metaroce/metaroce/transport/wire"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

const (
	rocePort    = 4791
	metaroceOps = 0xc0 // and up: MetaRoCE, which other tests look at
)

// capture is a dumpcap on the VM's TAP.
type capture struct {
	netns, file string
	cmd         *exec.Cmd
	errs        bed.Output
	done        chan struct{}
}

var captures atomic.Int32

// captureStart returns when packets are being captured. The file of a test that fails stays in build/interop; MR_INTEROP_KEEP=1
// keeps all.
func captureStart(t testing.TB, m *machine) *capture {
	t.Helper()
	// In the VM's directory, which the next run sweeps if this one dies.
	c := &capture{netns: m.netns, file: filepath.Join(m.dir, fmt.Sprintf("%d.pcap", captures.Add(1))), done: make(chan struct{})}
	t.Cleanup(func() { os.Remove(c.file) })
	t.Cleanup(func() {
		if t.Failed() || os.Getenv("MR_INTEROP_KEEP") == "1" {
			c.keep(t)
		}
	})
	c.cmd = exec.Command("ip", "netns", "exec", m.netns, "dumpcap", "-P", "-i", "vm0", "-w", c.file, "-B", "32", "-f", fmt.Sprintf("udp port %d", rocePort), "-a", "duration:600")
	c.cmd.Stderr = &c.errs
	if err := startMortal(c.cmd, c.done); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.end() })
	for deadline := time.Now().Add(10 * time.Second); !strings.Contains(c.errs.String(), "File:"); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("dumpcap does not start: %s", c.errs.String())
		}
	}
	return c
}

func (c *capture) keep(t testing.TB) {
	text, err := os.ReadFile(c.file)
	to := filepath.Join("../../build/interop", strings.NewReplacer("/", ".", " ", "_").Replace(t.Name())+".pcap")
	if err == nil {
		err = os.WriteFile(to, text, 0o644)
	}
	t.Logf("the capture: %s (%v)", to, err)
}

func (c *capture) end() {
	_ = c.cmd.Process.Signal(syscall.SIGINT) // it may have ended
	<-c.done
}

var dropsOfDumpcap = regexp.MustCompile(`received/dropped on interface '[^']*': (\d+)/(\d+)`)

// stop ends the capture, which must be complete, and returns its packets. The kernel keeps packets from dumpcap for up to a
// quarter of a second, and dumpcap from the file for longer: a last packet of ours shows when all before it are there.
func (c *capture) stop(t testing.TB) []frame {
	t.Helper()
	if err := sendMark(c.netns); err != nil {
		t.Fatalf("the mark at the end of the capture: %v", err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if text, err := os.ReadFile(c.file); err == nil && bytes.Contains(text, []byte(mark)) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the mark is not in the capture: %s", c.errs.String())
		}
	}
	c.end()
	if d := dropsOfDumpcap.FindStringSubmatch(c.errs.String()); d == nil || d[2] != "0" {
		t.Errorf("the capture is not complete: %s", c.errs.String())
	}
	frames, err := readPcap(c.file)
	if err != nil {
		t.Fatal(err)
	}
	return frames
}

// frame is a captured RoCE packet: what a driver would have made of it, and the headers as bytes.
type frame struct {
	pkt.Packet
	ip, udp []byte
}

// readPcap reads a file of the classic format with Ethernet frames in it.
func readPcap(name string) ([]frame, error) {
	f, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if len(f) < 24 || binary.LittleEndian.Uint16(f[20:]) != 1 {
		return nil, fmt.Errorf("%s: no pcap of Ethernet", name)
	}
	switch magic := binary.LittleEndian.Uint32(f); magic {
	case 0xa1b2c3d4, 0xa1b23c4d: // microseconds, nanoseconds
	default:
		return nil, fmt.Errorf("%s: magic %#x", name, magic)
	}
	var frames []frame
	for rest := f[24:]; len(rest) > 0; {
		if len(rest) < 16 {
			return nil, io.ErrUnexpectedEOF
		}
		n, whole := binary.LittleEndian.Uint32(rest[8:]), binary.LittleEndian.Uint32(rest[12:])
		if n != whole || int(n) > len(rest)-16 {
			return nil, fmt.Errorf("%s: %d of %d bytes of a packet", name, n, whole)
		}
		fr, err := parse(rest[16 : 16+n])
		if err != nil {
			return nil, fmt.Errorf("%s: packet %d: %w", name, len(frames)+1, err)
		}
		if string(fr.Data) != mark {
			frames = append(frames, fr)
		}
		rest = rest[16+n:]
	}
	return frames, nil
}

// parse takes the outer headers apart.
func parse(b []byte) (frame, error) {
	const ether, udpLen = 14, 8
	if len(b) < ether+20+udpLen {
		return frame{}, io.ErrUnexpectedEOF
	}
	var f frame
	switch b = b[ether:]; {
	case b[0] == 0x45:
		f.ip = b[:20]
		f.Src, f.Dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
		f.TOS, f.TTL, f.IPID = b[1], b[8], binary.BigEndian.Uint16(b[4:])
		f.NoDF = b[6]&0x40 == 0
	case b[0]>>4 == 6 && len(b) >= 40+udpLen:
		f.ip = b[:40]
		f.Src, f.Dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
		f.TOS, f.TTL, f.FlowLabel = b[0]<<4|b[1]>>4, b[7], binary.BigEndian.Uint32(b)&0xfffff
	default:
		return f, fmt.Errorf("neither IPv4 without options nor IPv6: % x", b[:20])
	}
	b = b[len(f.ip):]
	f.udp = b[:udpLen]
	f.SrcPort = binary.BigEndian.Uint16(b)
	n := int(binary.BigEndian.Uint16(b[4:]))
	if to := binary.BigEndian.Uint16(b[2:]); to != rocePort || n < udpLen || n > len(b) {
		return f, fmt.Errorf("UDP to port %d of %d bytes in %d", to, n, len(b))
	}
	f.Data = b[udpLen:n]
	return f, nil
}

// seen counts packets by opcode, for each sender.
type seen map[string]map[ib.Opcode]int

func (s seen) add(from string, op ib.Opcode) {
	if s[from] == nil {
		s[from] = map[ib.Opcode]int{}
	}
	s[from][op]++
}

// rocev2 and metaroce count a sender's packets of either protocol.
func (s seen) rocev2(from side) int { return s.total(from, 0, metaroceOps) }

func (s seen) metaroce(from side) int { return s.total(from, metaroceOps, 256) }

func (s seen) total(from side, lo, hi int) (n int) {
	for op, k := range s[from.String()] {
		if int(op) >= lo && int(op) < hi {
			n += k
		}
	}
	return n
}

func (s seen) String() string {
	var b strings.Builder
	for _, from := range slices.Sorted(maps.Keys(s)) {
		fmt.Fprintf(&b, "%s sent:", from)
		for _, op := range slices.Sorted(maps.Keys(s[from])) {
			fmt.Fprintf(&b, " %v %d", op, s[from][op])
		}
		b.WriteString("\n")
	}
	return b.String()
}

// senders are the addresses that packets may come from.
var senders = map[string]string{vmIPv4: "rxe", vmIPv6: "rxe", labIPv4: "nicemu", labIPv6: "nicemu"}

// verify checks each packet's family, form and ICRC, by the codec that the engine uses and by the one over plain header
// bytes, and that Wireshark's dissector has nothing to complain about.
func (c *capture) verify(t testing.TB, v6 bool) seen {
	t.Helper()
	var sum ib.Summer
	var h ib.Header
	all := seen{}
	bad := 0
	for i, f := range c.stop(t) {
		from, why := senders[f.Src.String()], ""
		metaroce := len(f.Data) > 0 && f.Data[0] >= metaroceOps
		switch {
		case from == "":
			why = "a sender that nobody knows"
		case f.Src.Is6() != v6:
			why = fmt.Sprintf("IPv6 is %t, should be %t", !v6, v6)
		case metaroce && from == "nicemu":
			all.add(from, ib.Opcode(f.Data[0]))
			continue
		case metaroce:
			why = "MetaRoCE"
		default:
			why = wrong(&f, &h, &sum)
		}
		if why != "" {
			if bad++; bad <= 5 {
				t.Errorf("packet %d, from %s (%v): %s\n% x % x % x", i+1, from, f.Src, why, f.ip, f.udp, f.Data)
			}
			continue
		}
		all.add(from, ib.Opcode(f.Data[0]))
	}
	if bad > 0 {
		t.Errorf("%d packets are wrong", bad)
	}
	c.dissect(t, all)
	return all
}

// wrong says what is wrong with a RoCEv2 packet, and takes its header apart.
func wrong(f *frame, h *ib.Header, sum *ib.Summer) string {
	if _, d := ib.Decode(f.Data, h); d != ib.Accepted {
		return d.String()
	}
	n := len(f.Data) - ib.ICRCLen
	got, want := binary.LittleEndian.Uint32(f.Data[n:]), wire.IBTA(f.ip, f.udp, f.Data[:n])
	if got != want || !sum.Good(&f.Packet) {
		return fmt.Sprintf("ICRC %#08x, should be %#08x; good for the engine: %t", got, want, sum.Good(&f.Packet))
	}
	return ""
}

// guesses are the dissectors that recognise a protocol inside RDMA by its bytes; perftest's are of none.
var guesses = []string{
	"eth_over_ib", "mellanox_eoib", "rpcrdma_infiniband", "smb_direct_infiniband", "smcr_infiniband", "sdp_infiniband", "iser_infiniband",
	"lnet_ib", "fc_infiniband",
}

// dissect lets tshark read the capture: each packet is InfiniBand to it, and none malformed.
func (c *capture) dissect(t testing.TB, all seen) {
	t.Helper()
	total := 0
	for _, ops := range all {
		for op, n := range ops {
			if op < metaroceOps {
				total += n
			}
		}
	}
	args := []string{"-n", "-r", c.file, "-T", "fields", "-e", "infiniband.bth.opcode", "-e", "infiniband.invariant.crc", "-e", "_ws.malformed"}
	for _, h := range guesses {
		args = append(args, "--disable-heuristic", h)
	}
	args = append(args, "-Y", fmt.Sprintf("!(infiniband.bth.opcode >= %d) && !(udp.srcport == %d)", metaroceOps, markPort))
	out, err := exec.Command("tshark", args...).Output()
	if err != nil {
		t.Fatalf("tshark: %v", err)
	}
	good := 0
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) != 3 || f[0] == "" || f[1] == "" || f[2] != "" {
			t.Errorf("tshark reads packet %d as %q", good+1, line)
			return
		}
		good++
	}
	if good != total {
		t.Errorf("tshark saw %d packets of %d", good, total)
	}
}
