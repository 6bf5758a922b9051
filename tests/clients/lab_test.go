//go:build clients

package clients

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/metaroce/metaroce/tools/bed"
)

// network is what lies between the hosts; rows with the same one share a lab.
type network struct {
	name   string // in the table
	impair string
}

var (
	lossy   = network{"0.5 % loss", "loss: 0.5%"}
	loss10  = network{"10 % loss", "loss: 10%"}
	oneHost = network{"one host", "loss: 0.5%"}
)

// clean is a network without loss, for programs that do not do what the table is about when a packet is lost.
func clean(why string) network { return network{"no loss: " + why, ""} }

// waits: a lost datagram, or message of an unreliable connection, is not sent again, and the program waits for each of them.
const waits = "nothing resends"

type lab struct{ *bed.Bed }

// built reports whether make made a file.
func built(path string) bool {
	_, err := os.Stat(filepath.Join("../../build", path))
	return err == nil
}

var labs = map[string]*lab{}

// on returns the lab with the network, which it brings up when there is none.
func on(t *testing.T, n network) *lab {
	t.Helper()
	if l := labs[n.impair]; l != nil {
		return l
	}
	bin, err := filepath.Abs("../../build/bin/nicemu")
	if err != nil {
		t.Fatal(err)
	}
	if !built("bin/nicemu") {
		t.Fatal("no build/bin/nicemu: run make first")
	}
	b, err := bed.New(bin, bed.Options{Wire: wire(), Hosts: 2, Planes: 2, Impair: n.impair, NoVeth: true})
	if err != nil {
		t.Fatal(err)
	}
	labs[n.impair] = &lab{b}
	return labs[n.impair]
}

// wire: TAP where this machine allows it, else UDP sockets.
func wire() string {
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		return "udp"
	}
	f.Close()
	return "tap"
}

// forget takes the lab with the network down; the next row gets a new one.
func forget(n network) {
	if l := labs[n.impair]; l != nil {
		l.Close()
		if l.Failure != nil {
			fmt.Fprintln(os.Stderr, l.Failure)
		}
		delete(labs, n.impair)
	}
}

func TestMain(m *testing.M) {
	code := m.Run()
	for impair, l := range labs {
		l.Close()
		if l.Failure != nil {
			fmt.Fprintf(os.Stderr, "a lab with %q: %v\n", impair, l.Failure)
			code = 1
		}
	}
	os.Exit(code)
}

// needPrograms skips a row whose program this machine lacks. CI sets MR_TEST_REQUIRE=all: there it fails.
func needPrograms(t *testing.T, program string) {
	t.Helper()
	_, err := exec.LookPath(program)
	if err == nil {
		return
	}
	if _, err := os.Stat("/usr/sbin/" + program); err == nil {
		return
	}
	if os.Getenv("MR_TEST_REQUIRE") == "all" {
		t.Fatalf("no %s, and MR_TEST_REQUIRE=all asks for every row; ci/deps.sh test installs it", program)
	}
	t.Skipf("needs %s; ci/deps.sh test installs it", program)
}

// job is a program that runs on a host.
type job struct {
	name string
	said bed.Output
	stop context.CancelFunc
	done chan struct{}
	err  error
}

// start starts a program on a host; after the limit it is asked to end, and killed a little later.
func (l *lab) start(limit time.Duration, host string, program ...string) *job {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	j := &job{name: host + ": " + strings.Join(program, " "), stop: cancel, done: make(chan struct{})}
	cmd := l.Command(ctx, host, program...)
	cmd.Stdout, cmd.Stderr = &j.said, &j.said
	go func() {
		defer close(j.done)
		defer cancel()
		j.err = cmd.Run()
		if ctx.Err() == context.DeadlineExceeded {
			j.err = fmt.Errorf("not done after %v", limit)
		}
	}()
	return j
}

func (j *job) running() bool {
	select {
	case <-j.done:
		return false
	default:
		return true
	}
}

// wait waits for the end and returns an error with all that was said when it was none in order.
func (j *job) wait() error {
	<-j.done
	if j.err != nil {
		return fmt.Errorf("%s: %w\n%s", j.name, j.err, j.said.String())
	}
	return nil
}

// end asks the program to end, and waits until it has.
func (j *job) end() {
	j.stop()
	<-j.done
}

// one runs a program on host a.
func (l *lab) one(limit time.Duration, program ...string) (string, error) {
	j := l.start(limit, "a", program...)
	err := j.wait()
	return j.said.String(), err
}

// pair is a server on host a and a client on b.
type pair struct {
	server, client []string
	listen         string        // TCP port on which the server listens; empty: the client tries until it is heard
	endless        bool          // the server stays when the client has gone
	limit          time.Duration // 0: 30 s
}

func (l *lab) pair(p pair) (string, error) {
	if p.limit == 0 {
		p.limit = 30 * time.Second
	}
	s := l.start(p.limit, "a", p.server...)
	defer s.end()
	c, err := l.client(s, p)
	if err != nil {
		if !p.endless && s.running() { // it may have something to say about it
			time.Sleep(200 * time.Millisecond)
		}
		s.end()
		return "", fmt.Errorf("%w\nserver: %s", err, s.said.String())
	}
	if p.endless {
		s.end()
	} else if err := s.wait(); err != nil {
		return "", err
	}
	return c.said.String() + s.said.String(), nil
}

// client runs the client of a pair to its end.
func (l *lab) client(s *job, p pair) (*job, error) {
	if p.listen != "" {
		if err := l.listens("a", p.listen, s); err != nil {
			return nil, err
		}
		c := l.start(p.limit, "b", p.client...)
		return c, c.wait()
	}
	for try := 0; ; try++ {
		time.Sleep(400 * time.Millisecond)
		c := l.start(p.limit, "b", p.client...)
		err := c.wait()
		if err == nil || try == 4 || !s.running() {
			return c, err
		}
	}
}

// listens waits until somebody on the host listens on a TCP port.
func (l *lab) listens(host, port string, server *job) error {
	n, _ := strconv.Atoi(port)
	needle := fmt.Sprintf(":%04X 0", n) // local address, then a remote one of zeros
	for range 100 {
		if !server.running() {
			return fmt.Errorf("%s ended before anybody connected: %w", server.name, server.err)
		}
		out, err := l.On(5*time.Second, host, "cat", "/proc/net/tcp", "/proc/net/tcp6")
		if err != nil || strings.Contains(out, needle) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("%s never listened on %s", server.name, port)
}

func (l *lab) port() string { return strconv.Itoa(l.NextPort()) }

// counters of a host's NIC.
type counters struct {
	Out  uint64 // bytes of RDMA packets on the wires
	Loop uint64 // bytes of packets to itself
}

func (l *lab) counters() (map[string]counters, error) {
	text, err := l.Ask("stats", "--json")
	if err != nil {
		return nil, err
	}
	var s struct {
		NICs []struct {
			NIC      string
			Counters map[string]uint64
			Planes   []struct{ Counters map[string]uint64 }
		}
	}
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return nil, fmt.Errorf("nicemu stats --json: %w", err)
	}
	all := map[string]counters{}
	for _, n := range s.NICs {
		c := counters{Loop: n.Counters["mroce_loopback_bytes_total"]}
		for _, p := range n.Planes {
			c.Out += p.Counters["mroce_tx_bytes_total"]
		}
		host, _, _ := strings.Cut(n.NIC, "/")
		all[host] = c
	}
	return all, nil
}

// words splits a command line at its spaces.
func words(program, args string, more ...string) []string {
	return append(append([]string{program}, strings.Fields(args)...), more...)
}
