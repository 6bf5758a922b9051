//go:build interop

package interop

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/metaroce/metaroce/tools/bed"
)

// side is where programs run: a host of the lab, or the VM.
type side interface {
	String() string
	// start starts a program and returns without waiting; it ends after limit at the latest.
	start(t testing.TB, limit time.Duration, program ...string) *run
	// device and gid are what programs of ibverbs-utils and perftest want to be told; the GID of an address family.
	device() string
	gid(v6 bool) string
	addr(v6 bool) string
}

// run is a program that runs, or ran.
type run struct {
	name string
	out  bed.Output
	stop func()
	done chan struct{}
	err  error // after done
}

func (r *run) running() bool {
	select {
	case <-r.done:
		return false
	default:
		return true
	}
}

// wait waits for the end, which must be a success.
func (r *run) wait(t testing.TB) string {
	t.Helper()
	<-r.done
	if r.err != nil {
		t.Errorf("%s: %v\n%s", r.name, r.err, brief(r.out.String()))
	}
	return r.out.String()
}

// on runs a program that must succeed, and returns what it printed.
func on(t testing.TB, s side, limit time.Duration, program ...string) string {
	t.Helper()
	out := s.start(t, limit, program...).wait(t)
	if t.Failed() {
		t.FailNow()
	}
	return out
}

var nextPort atomic.Int32 // each run has a TCP port of its own: one just closed may still be in TIME_WAIT

// pair runs a program as server on one side and as client on the other; both must succeed. The arguments are followed by
// each side's own: port, device, GID, and for the client the server's address. Only the GIDs are of IPv6 then: the programs' TCP
// knows IPv4.
func pair(t testing.TB, limit time.Duration, server, client side, v6 bool, program ...string) (serverOut, clientOut string) {
	t.Helper()
	port := fmt.Sprint(18600 + int(nextPort.Add(1))%2000)
	args := func(s side) []string {
		all := append([]string{}, program...)
		if strings.HasPrefix(program[0], "ibv_") {
			return append(all, "-p", port, "-d", s.device(), "-g", s.gid(v6))
		}
		return append(all, "-F", "-p", port, "-d", s.device(), "-x", s.gid(v6))
	}
	s := server.start(t, limit, args(server)...)
	listening(t, server, port, s)
	c := client.start(t, limit, append(args(client), server.addr(false))...)
	clientOut = c.wait(t)
	if t.Failed() {
		s.stop() // it may wait for a client that failed
	}
	return s.wait(t), clientOut
}

// listening waits until a program of a side listens on a TCP port.
func listening(t testing.TB, s side, port string, server *run) {
	t.Helper()
	var n int
	fmt.Sscan(port, &n)
	needle := fmt.Sprintf(":%04X 0", n) // local address, then a remote one of zeros
	deadline := time.Now().Add(30 * time.Second)
	for {
		if !server.running() {
			t.Fatalf("%s ended before anybody connected: %v\n%s", server.name, server.err, server.out.String())
		}
		if strings.Contains(on(t, s, 10*time.Second, "cat", "/proc/net/tcp", "/proc/net/tcp6"), needle) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not listen on %s:\n%s", server.name, port, server.out.String())
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// brief leaves out the addresses that perftest prints for each QP, and its rulers.
func brief(out string) string {
	var b strings.Builder
	for line := range strings.Lines(out) {
		if !strings.Contains(line, "address: LID") && !strings.HasPrefix(strings.TrimSpace(line), "GID:") && !strings.HasPrefix(line, "-----") {
			b.WriteString(line)
		}
	}
	return b.String()
}
