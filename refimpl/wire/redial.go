//go:build dpdk

package wire

import (
	"os"
	"strings"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/refimpl/dpdkx"
)

// redial brings a memif's client back. Its driver dials when the port is started and never again: where the server is not there
// yet, or went, the port is stopped and started until it is. (Servers need nothing: they listen.)
type redial struct {
	socket string
	turn   *dpdkx.Turn
	asked  bool // the port is being started
	down   bool // the port is stopped
	next   mono.Time
	wait   mono.Duration
}

const (
	redialFirst = 100 * mono.Millisecond
	redialMost  = 1 * mono.Second
	memifLogs   = "pmd.net.memif*"
)

// start starts a memif's client for the first time. That nobody answers is no error: somebody will.
func (r *redial) start(turn *dpdkx.Turn) {
	r.turn, r.wait, r.down = turn, redialFirst, true
	if !r.absent() {
		r.dial()
	}
}

// absent reports whether there is no socket to dial. One without a path is not for us to see.
func (r *redial) absent() bool {
	if !strings.HasPrefix(r.socket, "/") {
		return false
	}
	_, err := os.Lstat(r.socket)
	return err != nil
}

// dial starts the port, or starts it again. The driver would complain in the log each time.
func (r *redial) dial() {
	dpdkx.LogLevel(memifLogs, dpdkx.LogNothing)
	r.turn.Start(!r.down)
	r.asked, r.down = true, true
}

// settle looks what became of dialling.
func (r *redial) settle(now mono.Time) {
	state := r.turn.State()
	if state == dpdkx.TurnAsked {
		return
	}
	dpdkx.LogLevel(memifLogs, dpdkx.LogUsual)
	r.asked = false
	if state == dpdkx.TurnDone {
		r.down, r.wait, r.next = false, redialFirst, now.Add(redialMost) // time to shake hands
	}
}

// again is called while the link is down.
func (r *redial) again(now mono.Time) {
	if r.asked {
		r.settle(now)
		return
	}
	if now < r.next {
		return
	}
	if r.next == 0 { // the server may just be about to answer
		r.next = now.Add(redialFirst)
		return
	}
	r.wait = min(2*r.wait, redialMost)
	r.next = now.Add(r.wait)
	if !r.absent() {
		r.dial()
	}
}

// stopped reports whether the port is stopped, or the other thread's.
func (r *redial) stopped() bool { return r != nil && r.down }
