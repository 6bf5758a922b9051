//go:build dpdk

package wire

import (
	"os"
	"strings"

	"github.com/yerden/go-dpdk/ethdev"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/refimpl/dpdkx"
)

// redial brings a memif's client back. Its driver dials when the port is started and never again: where the server is not there
// yet, or went, the port is stopped and started until it is. (Servers need nothing: they listen.)
type redial struct {
	socket string
	down   bool // the port is stopped
	next   mono.Time
	wait   mono.Duration
}

const (
	redialFirst = 100 * mono.Millisecond
	redialMost  = 1 * mono.Second
	memifLogs   = "pmd.net.memif*"
)

// start starts a port. That nobody answers a memif's client is no error: somebody will.
func (r *redial) start(id ethdev.Port) error {
	if r == nil {
		return id.Start()
	}
	r.wait = redialFirst
	if r.absent() {
		r.down = true
		return nil
	}
	r.down = !r.try(id)
	return nil
}

// absent reports whether there is no socket to dial. One without a path is not for us to see.
func (r *redial) absent() bool {
	if !strings.HasPrefix(r.socket, "/") {
		return false
	}
	_, err := os.Lstat(r.socket)
	return err != nil
}

// try starts the port. The driver would complain in the log each time.
func (r *redial) try(id ethdev.Port) bool {
	dpdkx.LogLevel(memifLogs, dpdkx.LogNothing)
	defer dpdkx.LogLevel(memifLogs, dpdkx.LogUsual)
	return id.Start() == nil
}

// again is called while the link is down.
func (r *redial) again(now mono.Time, id ethdev.Port) {
	if now < r.next {
		return
	}
	if r.next == 0 { // the server may just be about to answer
		r.next = now.Add(redialFirst)
		return
	}
	r.wait = min(2*r.wait, redialMost)
	r.next = now.Add(r.wait)
	if r.absent() {
		return
	}
	if !r.down {
		id.Stop()
		r.down = true
	}
	if r.try(id) {
		r.down, r.wait, r.next = false, redialFirst, now.Add(redialMost) // time to shake hands
	}
}

// stopped reports whether the port is stopped already.
func (r *redial) stopped() bool { return r != nil && r.down }
