//go:build live

package live

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// TestKill: kill -9 of a program in the middle of its work. The peer ends within its timeout, the daemon frees everything
// the dead one had, and the next run works at once.
func TestKill(t *testing.T) {
	for _, victim := range []string{"client", "server"} {
		t.Run(victim, func(t *testing.T) {
			l := up(t, spec{wire: "mem"})
			empty := l.objects(t)
			s, c := l.startPair(t, 30*time.Second, "a", "b", "ib_write_bw", "-D", "20", "-q", "4")
			time.Sleep(1500 * time.Millisecond)
			if l.objects(t) == empty {
				t.Fatal("the daemon counts no objects while a program runs")
			}
			dead, other := c, s
			if victim == "server" {
				dead, other = s, c
			}
			if err := dead.cmd.Process.Kill(); err != nil { // exec keeps the number: this is the program itself
				t.Fatal(err)
			}
			<-dead.done
			start := time.Now()
			select {
			case <-other.done:
				t.Logf("the other side ended after %v: %v", time.Since(start), other.err)
			case <-time.After(10 * time.Second):
				t.Errorf("the other side still runs 10 s later:\n%s", other.out.String())
				other.cmd.Process.Kill()
			}
			eventually(t, 5*time.Second, "everything freed", func() (bool, string) {
				now := l.objects(t)
				return now == empty, now
			})
			l.pair(t, 20*time.Second, "a", "b", "ib_write_bw", "-n", "200")
		})
	}
}

// TestKillDaemon: the daemon of one host dies. Its program gets an error, the peer's program a failed completion, and after
// the lab was made anew everything works.
func TestKillDaemon(t *testing.T) {
	l := up(t, spec{wire: "udp", flags: []string{"--daemon-per-host"}})
	s, c := l.startPair(t, 30*time.Second, "a", "b", "ib_write_bw", "-D", "20")
	time.Sleep(1500 * time.Millisecond)
	if err := sigkill(l.daemon(t, "a")); err != nil {
		t.Fatal(err)
	}
	for _, j := range []*job{s, c} {
		select {
		case <-j.done:
			t.Logf("%s: %v", j.name, j.err)
		case <-time.After(10 * time.Second):
			t.Errorf("%s still runs 10 s after the daemon was killed:\n%s", j.name, j.out.String())
		}
	}
	if !strings.Contains(c.out.String(), "status 12") {
		t.Errorf("the client's work should fail with RETRY_EXC (12):\n%s", c.out.String())
	}
}

// objects returns the daemon's counts of contexts, QPs, CQs, MRs and PDs, as text to compare.
func (l *lab) objects(t testing.TB) string {
	t.Helper()
	var status struct {
		NICs []struct {
			Name    string
			Objects map[string]int
		}
	}
	l.json(t, &status, "status")
	var b strings.Builder
	for _, n := range status.NICs {
		b.WriteString(n.Name + " " + sorted(n.Objects) + "\n")
	}
	return b.String()
}

// daemon returns the number of the process that is a host's NIC.
func (l *lab) daemon(t testing.TB, host string) int {
	t.Helper()
	for _, line := range strings.Split(l.nice(t, 10*time.Second, "lab", "ls", "--json"), "\n") { // one lab a line
		var here struct {
			Name  string
			Hosts []struct {
				Name      string
				DaemonPID int `json:"daemon_pid"`
			}
		}
		if json.Unmarshal([]byte(line), &here) != nil || here.Name != "live" {
			continue
		}
		for _, h := range here.Hosts {
			if h.Name == host {
				return h.DaemonPID
			}
		}
	}
	t.Fatalf("no daemon of host %s in lab ls", host)
	return 0
}
