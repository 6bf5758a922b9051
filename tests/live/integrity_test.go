//go:build live

package live

import (
	"context"
	"strings"
	"testing"
	"time"
)

const dirty = "loss=10% reorder=5%:200us dup=2% corrupt=1%"

// TestIntegrity: our small verbs program fills, moves and checks SHA-256 of WRITE, SEND and READ traffic over wires that
// lose, reorder, duplicate and corrupt.
func TestIntegrity(t *testing.T) {
	for _, wire := range []string{"tap", "udp", "mem"} {
		t.Run(wire, func(t *testing.T) {
			l := up(t, spec{wire: wire})
			l.nice(t, 5*time.Second, append([]string{"lab", "impair"}, fields(dirty)...)...)
			l.integrity(t, 90*time.Second)
		})
	}
}

// TestIntegrityFlapping: the same while a plane goes down and up every 100 ms.
func TestIntegrityFlapping(t *testing.T) {
	l := up(t, spec{wire: "mem", impair: "  - {loss: 1%, reorder: 5%}"})
	ctx, stop := context.WithCancel(context.Background())
	flapped := make(chan int)
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			l.try(5*time.Second, "lab", "plane", "1", []string{"down", "up"}[n%2])
			time.Sleep(100 * time.Millisecond)
		}
		l.try(5*time.Second, "lab", "plane", "1", "up")
		flapped <- n
	}()
	l.integrity(t, 90*time.Second)
	stop()
	t.Logf("the plane changed %d times", <-flapped)
}

// integrity runs mr_integrity between the hosts.
func (l *lab) integrity(t testing.TB, limit time.Duration, args ...string) {
	t.Helper()
	l.verbs(t, limit, "mr_integrity", args...)
}

// verbs runs a test program of verbs/tests on both hosts.
func (l *lab) verbs(t testing.TB, limit time.Duration, program string, args ...string) {
	t.Helper()
	p := port()
	args = append([]string{build(t, "tests/"+program), "-p", p}, args...)
	s := l.start(t, limit, "a", args...)
	l.listening(t, "a", p, s)
	c := l.start(t, limit, "b", append(args, addrOf["a"])...)
	t.Log(strings.TrimSpace(c.wait(t)))
	s.wait(t)
}
