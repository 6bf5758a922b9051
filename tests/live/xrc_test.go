//go:build live

package live

import (
	"testing"
	"time"
)

// TestExtendedConnections: Debian's programs with XRC, over wires that lose.
func TestExtendedConnections(t *testing.T) {
	needProgram(t, "ibv_xsrq_pingpong", "ib_write_bw", "ib_write_lat", "ib_send_bw", "ib_send_lat", "ib_read_bw", "ib_read_lat", "ib_atomic_bw", "ib_atomic_lat")
	for _, c := range []struct{ name, wire, extra, impair string }{
		{"tap", "tap", "", "  - {loss: 0.5%}\n"}, {"rocev2", "mem", "transport: rocev2\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := up(t, spec{wire: c.wire, extra: c.extra, impair: c.impair})
			l.pingpong(t, "ibv_xsrq_pingpong", "-n", "300")
			l.pingpong(t, "ibv_xsrq_pingpong", "-e", "-s", "9000", "-n", "300")
			l.twoClients(t)
			for _, args := range [][]string{
				{"ib_send_bw", "-q", "4", "-n", "500"}, {"ib_send_bw", "-e", "-b", "-s", "100", "-n", "500"}, {"ib_send_lat", "-s", "8", "-n", "500"},
				{"ib_write_bw", "-n", "300"}, {"ib_write_lat", "-s", "8", "-n", "500"}, {"ib_read_bw", "-n", "300"}, {"ib_read_lat", "-s", "8", "-n", "500"},
				{"ib_atomic_bw", "-n", "300"}, {"ib_atomic_lat", "-n", "300"},
			} {
				l.pair(t, 60*time.Second, "a", "b", args[0], append([]string{"-c", "XRC"}, args[1:]...)...)
			}
		})
	}
}

// twoClients runs a server whose shared receive queue serves two programs of another host at once.
func (l *lab) twoClients(t *testing.T) {
	p := port()
	args := []string{"ibv_xsrq_pingpong", "-g", "0", "-p", p, "-n", "100"}
	s := l.start(t, 30*time.Second, "a", append(args, "-c", "2")...)
	l.listening(t, "a", p, s)
	first := l.start(t, 30*time.Second, "b", append(args, addrOf["a"])...)
	second := l.start(t, 30*time.Second, "b", append(args, addrOf["a"])...)
	first.wait(t)
	if second.wait(t); t.Failed() {
		s.cmd.Process.Signal(sigterm)
	}
	s.wait(t)
}
