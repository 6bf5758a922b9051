//go:build live

package live

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// portFile reads a file of the port on a host's NIC, as a program there sees it.
func (l *lab) portFile(t testing.TB, host, name string) string {
	t.Helper()
	return strings.TrimSpace(l.on(t, 10*time.Second, host, "cat", "/sys/class/infiniband/mr0/ports/1/"+name))
}

// portCounters reads counters of a host's port once they are as old as they may be.
func (l *lab) portCounters(t testing.TB, host string, names ...string) map[string]uint64 {
	t.Helper()
	time.Sleep(300 * time.Millisecond)
	script := "cd /sys/class/infiniband/mr0/ports/1 && cat"
	for _, n := range names {
		script += " " + n
	}
	values := map[string]uint64{}
	for i, text := range strings.Fields(l.on(t, 10*time.Second, host, "sh", "-c", script)) {
		v, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", names[i], err)
		}
		values[names[i]] = v
	}
	return values
}

// kinds are the labs that the view must be right in.
func kinds(t *testing.T, do func(t *testing.T, wire string, l func(spec) *lab)) {
	for _, wire := range []string{"tap", "udp"} {
		for _, user := range []bool{false, true} {
			if st, err := os.Stat("/dev/net/tun"); user && wire == "tap" && (err != nil || st.Mode()&6 != 6) {
				continue // only root makes TAPs here
			}
			t.Run(fmt.Sprintf("%s/user=%v", wire, user), func(t *testing.T) {
				do(t, wire, func(s spec) *lab {
					s.wire = wire
					if user {
						needRoot(t)
						return upOn(t, userStation(t), s)
					}
					return up(t, s)
				})
			})
		}
	}
}

// TestF10Diags: the tools of infiniband-diags show every NIC of a host, and a port whose planes are all down is down.
func TestF10Diags(t *testing.T) {
	needProgram(t, "ibstat", "ibstatus", "ibv_devinfo")
	kinds(t, func(t *testing.T, _ string, lab func(spec) *lab) {
		l := lab(spec{hosts: "  a: {nics: {mr0: {addr: 10.0.0.1/24}, mr1: {addr: 10.1.0.1/24}}}\n  b: {addr: 10.0.0.2/24}\n"})
		if out := l.on(t, 10*time.Second, "a", "ibstat", "-l"); out != "mr0\nmr1\n" && out != "mr1\nmr0\n" {
			t.Errorf("ibstat -l: %q", out)
		}
		expect(t, l.on(t, 10*time.Second, "a", "ibstat"), []string{"CA 'mr0'", "CA 'mr1'", "State: Active", "Physical state: LinkUp", "Rate: 100", "Link layer: Ethernet",
			"Port GUID: 0x0000ffff0a010001"})
		expect(t, l.on(t, 10*time.Second, "a", "ibstat", "-p"), []string{"0x0000ffff0a000001", "0x0000ffff0a010001"})
		expect(t, l.on(t, 10*time.Second, "a", "ibstatus"), []string{"Infiniband device 'mr0' port 1 status", "'mr1'", "4: ACTIVE", "5: LinkUp", "100 Gb/sec (4X EDR)", "Ethernet"})
		expect(t, l.on(t, 10*time.Second, "a", "ibv_devinfo", "-v"), []string{"mr0", "mr1", "PORT_ACTIVE", "GID[  0]:\t\t::ffff:10.1.0.1, RoCE v2"})
		for plane := range 4 {
			l.nice(t, 10*time.Second, "plane", "down", fmt.Sprint(plane), "--nic", "a/mr0")
			if plane < 3 && plane > 0 {
				continue
			}
			time.Sleep(300 * time.Millisecond)
			want := map[bool]string{true: "State: Active", false: "State: Down"}[plane < 3]
			expect(t, l.on(t, 10*time.Second, "a", "ibstat", "mr0"), []string{want})
		}
		expect(t, l.on(t, 10*time.Second, "a", "ibstat", "mr1"), []string{"State: Active"})
		l.nice(t, 10*time.Second, "plane", "up", "2", "--nic", "a/mr0")
		time.Sleep(300 * time.Millisecond)
		expect(t, l.on(t, 10*time.Second, "a", "ibstatus", "mr0"), []string{"4: ACTIVE", "5: LinkUp"})
		if got := l.portFile(t, "a", "counters/link_downed"); got != "1" {
			t.Errorf("link_downed %s", got)
		}
	})
}

// TestF11Counters: the counters move by the bytes that programs send, perftest finds them, and they are still in between.
func TestF11Counters(t *testing.T) {
	kinds(t, func(t *testing.T, _ string, lab func(spec) *lab) {
		l := lab(spec{})
		names := []string{"counters/port_xmit_data", "counters/port_rcv_data", "counters/port_xmit_packets", "hw_counters/rx_write_requests"}
		const rounds, size = 500, 65536
		a, b := l.portCounters(t, "a", names...), l.portCounters(t, "b", names...)
		serverOut, clientOut := l.pair(t, 30*time.Second, "a", "b", "ib_write_bw", "-n", fmt.Sprint(rounds), "--report-counters", "counters/port_rcv_data,counters/port_xmit_data")
		a2, b2 := l.portCounters(t, "a", names...), l.portCounters(t, "b", names...)
		sent, received := 4*(b2[names[0]]-b[names[0]]), 4*(a2[names[1]]-a[names[1]])
		if sent < rounds*size || sent > rounds*size*12/10 {
			t.Errorf("%d bytes written, port_xmit_data grew by %d bytes", rounds*size, sent)
		}
		if received < rounds*size || received > sent {
			t.Errorf("%d bytes sent, port_rcv_data grew by %d bytes", sent, received)
		}
		if n := a2[names[3]] - a[names[3]]; n != rounds || b2[names[3]] != b[names[3]] {
			t.Errorf("rx_write_requests grew by %d and %d, %d were made", n, b2[names[3]]-b[names[3]], rounds)
		}
		for out, name := range map[string]string{serverOut: "port_rcv_data", clientOut: "port_xmit_data"} {
			_, text, _ := strings.Cut(out, name+"=")
			text, _, _ = strings.Cut(text, "\n")
			if n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64); err != nil || 4*n < rounds*size*8/10 || 4*n > rounds*size*12/10 {
				t.Errorf("perftest reports %s=%s", name, text)
			}
		}
		if again := l.portCounters(t, "b", names...); again["counters/port_xmit_data"]-b2["counters/port_xmit_data"] > 10_000 {
			t.Errorf("nobody sends, and port_xmit_data grows: %v, %v", b2, again)
		}
	})
}

// TestF45HWCounters: what tells why it is slow moves under loss, want of receives, and marks, at the end that mlx5 counts it at,
// and stays 0 without.
func TestF45HWCounters(t *testing.T) {
	const seq, nak, timeout = "hw_counters/out_of_sequence", "hw_counters/packet_seq_err", "hw_counters/local_ack_timeout_err"
	const noBuffer, rnr = "hw_counters/out_of_buffer", "hw_counters/rnr_nak_retry_err"
	const marked, cnp, handled = "hw_counters/np_ecn_marked_roce_packets", "hw_counters/np_cnp_sent", "hw_counters/rp_cnp_handled"
	all := []string{seq, nak, timeout, noBuffer, rnr, marked, cnp, handled}
	for _, transport := range []string{"metaroce", "rocev2"} {
		t.Run(transport, func(t *testing.T) {
			l := up(t, spec{wire: "tap", extra: "transport: " + transport + "\n"})
			grows := func(what string, at map[string]string, still []string, run func()) {
				t.Helper()
				before := map[string]map[string]uint64{"a": l.portCounters(t, "a", all...), "b": l.portCounters(t, "b", all...)}
				run()
				after := map[string]map[string]uint64{"a": l.portCounters(t, "a", all...), "b": l.portCounters(t, "b", all...)}
				for name, host := range at {
					if after[host][name] == before[host][name] {
						t.Errorf("%s: %s of %s did not move", what, name, host)
					}
				}
				for _, name := range still {
					for _, host := range []string{"a", "b"} {
						if n := after[host][name] - before[host][name]; n != 0 {
							t.Errorf("%s: %s of %s grew by %d", what, name, host, n)
						}
					}
				}
			}
			grows("nothing", nil, []string{seq, nak, noBuffer, rnr, marked, cnp, handled}, func() { l.pair(t, 30*time.Second, "a", "b", "ib_write_bw", "-n", "500") })
			grows("no receives", map[string]string{noBuffer: "a", rnr: "b"}, []string{nak, marked}, func() {
				for range 2 { // a shared queue tells nobody how many there are
					l.pair(t, 30*time.Second, "a", "b", "ib_send_bw", "-n", "500", "-r", "1", "-s", "4096", "--use-srq")
				}
			})
			l.nice(t, 10*time.Second, "lab", "impair", "loss=2%")
			grows("loss", map[string]string{seq: "a", nak: "b", timeout: "b"}, []string{noBuffer, rnr, marked, cnp, handled}, func() {
				l.pair(t, 60*time.Second, "a", "b", "ib_write_bw", "-n", "300")
				l.pair(t, 60*time.Second, "a", "b", "ib_write_lat", "-n", "500")
			})
			l.nice(t, 10*time.Second, "lab", "impair", "clear", "rate=2Gbit", "queue=4MiB", "ecn=16KiB:64KiB")
			grows("marks", map[string]string{marked: "a", cnp: "a", handled: "b"}, []string{noBuffer, rnr}, func() {
				l.pair(t, 60*time.Second, "a", "b", "ib_write_bw", "-n", "300")
			})
		})
	}
}

// TestF37GIDs: a NIC with IPv6 addresses only: each index has its type and interface and works, the first unused one has none
// and fails at once.
func TestF37GIDs(t *testing.T) {
	kinds(t, func(t *testing.T, _ string, lab func(spec) *lab) {
		l := lab(spec{hosts: "  a: {addr: ['fd00::1/64', 'fd01::1/64']}\n  b: {addr: ['fd00::2/64', 'fd01::2/64']}\n"})
		for i, gid := range []string{"fd00:0000:0000:0000:0000:0000:0000:0001", "fd01:0000:0000:0000:0000:0000:0000:0001"} {
			x := strconv.Itoa(i)
			if got := l.portFile(t, "a", "gids/"+x); got != gid {
				t.Errorf("GID %d is %s", i, got)
			}
			if typ, dev := l.portFile(t, "a", "gid_attrs/types/"+x), l.portFile(t, "a", "gid_attrs/ndevs/"+x); typ != "RoCE v2" || dev != "mr0" {
				t.Errorf("GID %d: %q on %q", i, typ, dev)
			}
			// perftest and the pingpongs meet over IPv4 only: on one host. F05 has both between hosts.
			p := port()
			s := l.start(t, 30*time.Second, "a", "ib_write_bw", "-F", "-x", x, "-n", "100", "-p", p)
			l.listening(t, "a", p, s)
			l.on(t, 30*time.Second, "a", "ib_write_bw", "-F", "-x", x, "-n", "100", "-p", p, "127.0.0.1")
			s.wait(t)
		}
		start := time.Now()
		out := l.try(20*time.Second, "lab", "exec", "a", "--", "ibv_rc_pingpong", "-g", "2", "-n", "1")
		if strings.Contains(out, "exit 0") || time.Since(start) > 3*time.Second {
			t.Errorf("an unused index should fail at once (%v):\n%s", time.Since(start), out)
		}
		if out := l.try(10*time.Second, "lab", "exec", "a", "--", "cat", "/sys/class/infiniband/mr0/ports/1/gid_attrs/types/2"); !strings.Contains(out, "exit 1") {
			t.Errorf("an unused index has a type:\n%s", out)
		}
	})
}
