//go:build interop

package interop

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/metaroce/metaroce/transport/wire/ib"
)

// TestConnectionManager: rdma_cm of Linux's kernel and ours, each as the server of the other: connections, datagrams, IPv6,
// and with loss. tshark reads every message (verify).
func TestConnectionManager(t *testing.T) {
	m := vm(t)
	for _, loss := range []string{"", "1%"} {
		name := "clean"
		if loss != "" {
			name = "loss=" + loss
		}
		t.Run(name, func(t *testing.T) {
			l := up(t, m, "rocev2")
			if loss != "" {
				l.impair(t, "loss="+loss, "rx.loss="+loss)
			}
			for _, c := range []struct {
				server, client string // %s: the server's address
				v6, clean      bool
			}{
				{server: "rping -s -a %s -C 5 -V", client: "rping -c -a %s -C 5 -V"},
				{server: "rping -s -a %s -C 3 -V", client: "rping -c -a %s -C 3 -V", v6: true, clean: true},
				{server: "ucmatose -b %s -c 5", client: "ucmatose -s %s -c 5"},
				{server: "udaddy -b %s", client: "udaddy -s %s", clean: true},
			} {
				if loss != "" && c.clean {
					continue
				}
				for _, dir := range []struct{ server, client side }{{m, l}, {l, m}} {
					name := fmt.Sprintf("%s to %v", strings.Fields(c.server)[0], dir.server)
					if c.v6 {
						name += " IPv6"
					}
					t.Run(name, func(t *testing.T) {
						serve, ask := fmt.Sprintf(c.server, dir.server.addr(c.v6)), fmt.Sprintf(c.client, dir.server.addr(c.v6))
						cap := captureStart(t, m)
						connect(t, dir.server, dir.client, strings.Fields(serve), strings.Fields(ask))
						got := cap.verify(t, c.v6)
						t.Logf("%v", got)
						if got[dir.client.String()][ib.UDSend] == 0 {
							t.Errorf("no messages from %v", dir.client)
						}
					})
				}
			}
		})
	}
}

// connect runs a server and then its client, again while nobody listens yet: the kernel does not tell.
func connect(t *testing.T, server, client side, serve, ask []string) {
	t.Helper()
	s := server.start(t, 90*time.Second, serve...)
	defer s.stop()
	for try := range 20 {
		time.Sleep(time.Second)
		c := client.start(t, 20*time.Second, ask...)
		<-c.done
		if c.err == nil {
			break
		}
		if !s.running() || try == 19 {
			t.Errorf("%s: %v\n%s\nserver:\n%s", c.name, c.err, c.out.String(), s.out.String())
			break
		}
	}
	s.wait(t)
}
