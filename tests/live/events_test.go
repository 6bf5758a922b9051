//go:build live

package live

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestF38Events: programs hear of a port that fails and comes back, and of each address that comes and goes, once and with the
// right port; an address that comes back has its index again; one plane of several is no event.
func TestF38Events(t *testing.T) {
	needRoot(t) // changes addresses
	needProgram(t, "ibv_asyncwatch", "ibv_devinfo", "stdbuf")
	for _, wire := range []string{"tap", "udp"} {
		t.Run(wire, func(t *testing.T) {
			l := up(t, spec{wire: wire})
			watch := l.start(t, 60*time.Second, "a", "stdbuf", "-oL", "ibv_asyncwatch")
			other := l.start(t, 60*time.Second, "b", "stdbuf", "-oL", "ibv_asyncwatch")
			for _, j := range []*job{watch, other} {
				eventually(t, 10*time.Second, "ibv_asyncwatch listens", func() (bool, string) { return strings.Contains(j.out.String(), "async event FD"), j.out.String() })
			}
			var want []string
			hears := func(what string, events ...string) {
				t.Helper()
				want = append(want, events...)
				var got []string
				told := func() (bool, string) {
					got = nil
					for _, line := range strings.Split(watch.out.String(), "\n") {
						if _, text, ok := strings.Cut(line, "event_type "); ok {
							got = append(got, text)
						}
					}
					return len(got) >= len(want), fmt.Sprint(got)
				}
				eventually(t, 5*time.Second, what+" is told", told)
				time.Sleep(300 * time.Millisecond) // nothing comes besides
				if told(); fmt.Sprint(got) != fmt.Sprint(want) {
					t.Fatalf("%s: heard\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
			}
			gids := func(want ...string) {
				t.Helper()
				var got []string
				for _, line := range strings.Split(l.on(t, 10*time.Second, "a", "ibv_devinfo", "-v"), "\n") {
					if _, text, ok := strings.Cut(line, "GID["); ok {
						got = append(got, strings.Join(strings.Fields(strings.NewReplacer("]:", "", ",", "").Replace(text))[:2], "="))
					}
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("GIDs %v, want %v", got, want)
				}
			}
			const change, failed, active = "IBV_EVENT_GID_CHANGE (18), port 1", "IBV_EVENT_PORT_ERR (10), port 1", "IBV_EVENT_PORT_ACTIVE (9), port 1"
			addr := func(what string) { l.on(t, 5*time.Second, "a", "ip", "addr", what, "10.0.0.7/24", "dev", "mr0") }
			plane := func(what string, p int) { l.nice(t, 5*time.Second, "plane", what, fmt.Sprint(p), "--nic", "a/mr0") }
			gids("0=::ffff:10.0.0.1")
			addr("add")
			hears("a new address", change)
			gids("0=::ffff:10.0.0.1", "1=::ffff:10.0.0.7")
			l.on(t, 5*time.Second, "a", "ip", "addr", "add", "10.0.0.9/24", "dev", "mr0")
			hears("another one", change)
			addr("del")
			hears("an address that goes", change)
			gids("0=::ffff:10.0.0.1", "2=::ffff:10.0.0.9")
			addr("add")
			hears("its return", change)
			gids("0=::ffff:10.0.0.1", "1=::ffff:10.0.0.7", "2=::ffff:10.0.0.9")
			if typ, dev := l.portFile(t, "a", "gid_attrs/types/1"), l.portFile(t, "a", "gid_attrs/ndevs/1"); typ != "RoCE v2" || dev != "mr0" {
				t.Errorf("GID 1: %q on %q", typ, dev)
			}
			plane("down", 0)
			plane("up", 0)
			plane("down", 1)
			hears("one plane")
			for _, p := range []int{0, 2, 3} {
				plane("down", p)
			}
			hears("the last plane", failed)
			plane("up", 2)
			hears("the first plane that is back", active)
			for _, p := range []int{0, 1, 3} {
				plane("up", p)
			}
			hears("more planes")
			if text := other.out.String(); strings.Contains(text, "event_type") {
				t.Errorf("the other NIC's programs heard\n%s", text)
			}
			if wire == "tap" { // over udp: wires the others do not learn of a new address
				p := port()
				s := l.start(t, 20*time.Second, "a", "ibv_rc_pingpong", "-g", "1", "-c", "-n", "50", "-p", p)
				l.listening(t, "a", p, s)
				l.on(t, 20*time.Second, "b", "ibv_rc_pingpong", "-g", "0", "-c", "-n", "50", "-p", p, "10.0.0.1")
				s.wait(t)
			}
			for _, j := range []*job{watch, other} {
				j.cmd.Process.Signal(sigterm)
			}
		})
	}
}
