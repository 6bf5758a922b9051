//go:build live

package live

import (
	"testing"
	"time"
)

// TestSharedReceiveQueues: Debian's programs with a shared receive queue, over wires that lose, of both transports.
func TestSharedReceiveQueues(t *testing.T) {
	needProgram(t, "ibv_srq_pingpong", "ib_send_bw", "ib_send_lat", "ib_write_bw")
	for _, c := range []struct{ name, wire, extra, impair string }{
		{"tap", "tap", "", "  - {loss: 0.5%}\n"}, {"udp", "udp", "", "  - {loss: 2%}\n"}, {"rocev2", "mem", "transport: rocev2\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := up(t, spec{wire: c.wire, extra: c.extra, impair: c.impair})
			l.pingpong(t, "ibv_srq_pingpong", "-n", "300")
			l.pingpong(t, "ibv_srq_pingpong", "-e", "-q", "7", "-s", "9000", "-n", "300")
			for _, args := range [][]string{
				{"ib_send_bw", "--use-srq", "-q", "16", "-n", "500"}, {"ib_send_bw", "--use-srq", "-b", "-q", "4", "-s", "100", "-n", "500"},
				{"ib_send_lat", "--use-srq", "-s", "8", "-n", "500"}, {"ib_send_bw", "--use-srq", "-e", "-q", "2", "-n", "200"},
			} {
				l.pair(t, 60*time.Second, "a", "b", args[0], args[1:]...)
			}
			if c.impair == "" { // perftest waits for each datagram; as many receives as datagrams: they are not waited for
				l.pair(t, 60*time.Second, "a", "b", "ib_send_bw", "-c", "UD", "--use-srq", "-s", "1000", "-n", "500")
			}
		})
	}
}
