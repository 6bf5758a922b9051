//go:build interop

package interop

import (
	"strings"
	"testing"
	"time"

	"github.com/metaroce/metaroce/transport/wire/ib"
)

// TestVM: the machine boots, takes commands and says how they ended, and rxe works by itself.
func TestVM(t *testing.T) {
	m := vm(t)
	if out := on(t, m, 10*time.Second, "ibv_devinfo"); !strings.Contains(out, "PORT_ACTIVE") || !strings.Contains(out, "active_mtu:\t\t4096") {
		t.Errorf("rxe0 is not as it should be:\n%s", out)
	}
	r := m.start(t, 10*time.Second, "exit 7")
	if <-r.done; r.err == nil || !strings.Contains(r.err.Error(), "7") {
		t.Errorf("a command that failed: %v", r.err)
	}
	_, out := pair(t, 60*time.Second, m, m, false, "ib_write_bw", "-n", "20", "-s", "4096")
	t.Logf("rxe with itself:\n%s", brief(out))
}

// TestReach: the two see each other through the bridges, with frames of the whole MTU.
func TestReach(t *testing.T) {
	m := vm(t)
	l := up(t, m, "rocev2")
	for _, v6 := range []bool{false, true} {
		t.Logf("%s", on(t, m, 20*time.Second, "ping", "-c", "3", "-s", "4200", l.addr(v6)))
	}
}

// TestTheirICRC: what rxe sends to a peer that does not exist has ICRCs that our codec finds right. Our engine has no part in
// it, so that codec and engine fail apart.
func TestTheirICRC(t *testing.T) {
	m := vm(t)
	for _, peer := range []struct{ addr, gid string }{
		{"10.0.0.9", "00000000000000000000ffff0a000009"}, {"fd00::9", "fd000000000000000000000000000009"},
	} {
		v6 := strings.Contains(peer.addr, ":")
		c := captureStart(t, m)
		on(t, m, 5*time.Second, "/usr/bin/ip neigh replace "+peer.addr+" lladdr 02:00:00:00:00:09 dev eth0")
		for _, program := range []string{"ibv_rc_pingpong", "ibv_ud_pingpong"} {
			// Who listens gives the programs a QP number, a PSN and a GID, as the real server would. They wait for an answer
			// that never comes.
			on(t, m, 20*time.Second, "(printf '0000:000011:000123:"+peer.gid+"\\0' | nc -l -p 18500 >/dev/null) & sleep 1;",
				"timeout 3", program, "-d", m.device(), "-g", m.gid(v6), "-p 18500 -s 2000 -n 3 127.0.0.1; true")
		}
		got := c.verify(t, v6)
		t.Logf("to %s\n%v", peer.addr, got)
		sentBy(t, got, m, []ib.Opcode{ib.SendFirst, ib.SendLast, ib.UDSend})
	}
}

// TestFallback: a NIC that would rather speak MetaRoCE finds out that rxe does not, and speaks RoCEv2 with it, whoever begins. Its
// HELLOs do rxe no harm.
func TestFallback(t *testing.T) {
	m := vm(t)
	for _, dir := range []string{"rxe", "nicemu"} {
		t.Run("to "+dir, func(t *testing.T) {
			l := up(t, m, "auto")
			server, client := side(m), side(l)
			if dir == "nicemu" {
				server, client = l, m
			}
			c := captureStart(t, m)
			_, out := pair(t, 60*time.Second, server, client, false, "ib_write_bw", "-s", "4096", "-n", "50")
			got := c.verify(t, false)
			t.Logf("%s\n%v", results(out), got)
			if got.metaroce(l) == 0 {
				t.Error("nicemu never asked for MetaRoCE: this was no fallback")
			}
			sentBy(t, got, client, []ib.Opcode{ib.WriteOnly})
			sentBy(t, got, server, []ib.Opcode{ib.Ack})
			on(t, m, 10*time.Second, "ibv_devinfo") // it still lives
		})
	}
}
