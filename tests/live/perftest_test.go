//go:build live

package live

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

var addrOf = map[string]string{"a": "10.0.0.1", "b": "10.0.0.2"}

// nextPort gives each run a TCP port of its own: hosts of a lab without namespaces share theirs, and a port just closed
// may still be in TIME_WAIT.
var nextPort atomic.Int32

func port() string { return strconv.Itoa(18600 + int(nextPort.Add(1))%2000) }

// listening waits until a program on the host listens on the TCP port.
func (l *lab) listening(t testing.TB, host, port string, server *job) {
	t.Helper()
	n, _ := strconv.Atoi(port)
	needle := fmt.Sprintf(":%04X 0", n) // local address, then a remote one of zeros
	eventually(t, 10*time.Second, server.name+" listens on "+port, func() (bool, string) {
		if !server.running() {
			t.Fatalf("%s ended before anybody connected: %v\n%s", server.name, server.err, server.out.String())
		}
		out := l.try(5*time.Second, "lab", "exec", host, "--", "cat", "/proc/net/tcp", "/proc/net/tcp6")
		return strings.Contains(out, needle), server.out.String()
	})
}

// pair runs a perftest program as server on one host and as client on another; both must succeed.
func (l *lab) pair(t testing.TB, limit time.Duration, server, client, program string, args ...string) (serverOut, clientOut string) {
	t.Helper()
	s, c := l.startPair(t, limit, server, client, program, args...)
	clientOut = c.wait(t)
	if t.Failed() {
		s.cmd.Process.Signal(sigterm) // it may wait for ever for a client that failed
	}
	return s.wait(t), clientOut
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

// startPair starts both and returns when the client has been started.
func (l *lab) startPair(t testing.TB, limit time.Duration, server, client, program string, args ...string) (s, c *job) {
	t.Helper()
	p := port()
	args = append([]string{program, "-F", "-p", p}, args...)
	s = l.start(t, limit, server, args...)
	l.listening(t, server, p, s)
	return s, l.start(t, limit, client, append(args, addrOf[server])...)
}

// row is a line of perftest's table.
type row struct {
	bytes, iterations int
	values            []float64 // bw: peak, average, Mpps; lat: min, max, typical, average, stdev, p99, p99.9
}

// table parses perftest's table.
func table(out string) []row {
	var rows []row
	for _, line := range strings.Split(out, "\n") {
		f := strings.Fields(line)
		if len(f) < 4 {
			continue
		}
		var r row
		var err error
		if r.bytes, err = strconv.Atoi(f[0]); err != nil {
			continue
		}
		if r.iterations, err = strconv.Atoi(f[1]); err != nil {
			continue
		}
		for _, s := range f[2:] {
			v, err := strconv.ParseFloat(s, 64)
			if err != nil {
				break
			}
			r.values = append(r.values, v)
		}
		if len(r.values) >= 2 {
			rows = append(rows, r)
		}
	}
	return rows
}

// gbits returns the average bandwidth of a run with --report_gbits.
func gbits(t testing.TB, out string) float64 {
	t.Helper()
	rows := table(out)
	if len(rows) == 0 {
		t.Fatalf("no table in:\n%s", out)
	}
	return rows[len(rows)-1].values[1]
}
