//go:build live

package live

import (
	"testing"
	"time"
)

// TestUnreliableConnections: Debian's programs with UC, whatever transport connections are to have. Programs wait for
// every message, so nothing may be lost here; ib_send_bw gets a receive for each.
func TestUnreliableConnections(t *testing.T) {
	needProgram(t, "ibv_uc_pingpong", "ib_write_bw", "ib_write_lat", "ib_send_bw", "ib_send_lat")
	for _, c := range []struct{ name, wire, extra string }{{"tap", "tap", ""}, {"udp", "udp", ""}, {"rocev2", "mem", "transport: rocev2\n"}} {
		t.Run(c.name, func(t *testing.T) {
			l := up(t, spec{wire: c.wire, extra: c.extra})
			l.pingpong(t, "ibv_uc_pingpong", "-n", "300")
			l.pingpong(t, "ibv_uc_pingpong", "-e", "-s", "9000", "-n", "300")
			for _, args := range [][]string{
				{"ib_write_bw", "-n", "500"}, {"ib_write_bw", "-b", "-q", "3", "-s", "100", "-n", "500"}, {"ib_write_lat", "-s", "8", "-n", "500"},
				{"ib_send_bw", "-s", "2000", "-r", "512", "-n", "500"}, {"ib_send_bw", "-e", "-q", "2", "-r", "200", "-s", "512", "-n", "200"}, {"ib_send_lat", "-s", "8", "-n", "500"},
			} {
				l.pair(t, 60*time.Second, "a", "b", args[0], append([]string{"-c", "UC"}, args[1:]...)...)
			}
		})
	}
}
