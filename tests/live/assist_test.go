//go:build live

package live

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// refused is a lab whose daemon may not reach the memory of programs: a seccomp filter refuses it process_vm_* (mode 2), and
// /proc/PID/mem as well (mode 3).
func refused(t testing.TB, mode string, s spec) *lab {
	t.Helper()
	s.as = []string{build(t, "tests/refuse"), mode}
	return up(t, s)
}

// ways returns how the programs on the lab's NICs are reached, and how many calls their copy threads did not answer.
func (l *lab) ways(t testing.TB) (ways map[string]int, stalls int) {
	t.Helper()
	var status struct {
		NICs []struct {
			Contexts []struct {
				DMA    string
				Stalls int `json:"dma_stalls"`
			}
		}
	}
	l.json(t, &status, "status")
	ways = map[string]int{}
	for _, n := range status.NICs {
		for _, c := range n.Contexts {
			ways[c.DMA]++
			stalls += c.Stalls
		}
	}
	return ways, stalls
}

// TestAssist: Debian's programs and ours where a copy thread in each must do the daemon's work, and where /proc/PID/mem does.
func TestAssist(t *testing.T) {
	needProgram(t, "ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_send_lat", "ib_atomic_bw")
	for _, c := range []struct{ mode, way string }{{"2", "proc_mem"}, {"3", "assist"}} {
		t.Run(c.way, func(t *testing.T) {
			l := refused(t, c.mode, spec{wire: "udp", impair: "  - {loss: 0.5%, reorder: 2%}"})
			s, client := l.startPair(t, 30*time.Second, "a", "b", "ib_write_bw", "-D", "3")
			eventually(t, 5*time.Second, "both programs reached by "+c.way, func() (bool, string) {
				w, _ := l.ways(t)
				return w[c.way] == 2, sorted(w)
			})
			if out := l.nice(t, 5*time.Second, "status"); !strings.Contains(out, "DMA "+c.way) {
				t.Errorf("status does not say %s:\n%s", c.way, out)
			}
			client.wait(t)
			s.wait(t)
			for _, args := range [][]string{{"ib_read_bw", "-n", "500"}, {"ib_send_bw", "-n", "500"}, {"ib_send_lat", "-n", "300"},
				{"ib_atomic_bw", "-n", "300"}, {"ib_write_bw", "-q", "8", "-n", "200"}, {"ib_send_bw", "-e", "-n", "200"}} {
				l.pair(t, 60*time.Second, "a", "b", args[0], args[1:]...)
			}
			l.integrity(t, 90*time.Second)
			l.verbs(t, 60*time.Second, "mr_flag", "-n", "1000")
			if _, stalls := l.ways(t); stalls != 0 {
				t.Errorf("%d calls were not answered", stalls)
			}
		})
	}
}

// TestAssistStopped: a program that is stopped fails its own connections; others are served meanwhile, and it is served
// again when it goes on.
func TestAssistStopped(t *testing.T) {
	needProgram(t, "ib_write_bw")
	l := refused(t, "3", spec{wire: "mem"})
	s, c := l.startPair(t, 60*time.Second, "a", "b", "ib_write_bw", "-D", "40")
	time.Sleep(1500 * time.Millisecond)
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.cmd.Process.Kill() })
	select {
	case <-c.done:
		if c.err == nil {
			t.Errorf("writes into a stopped program succeeded:\n%s", c.out.String())
		}
	case <-time.After(10 * time.Second):
		t.Errorf("10 s later the client has not heard of it:\n%s", c.out.String())
	}
	if _, stalls := l.ways(t); stalls == 0 {
		t.Error("no call is counted as not answered")
	}
	start := time.Now()
	l.pair(t, 20*time.Second, "a", "b", "ib_write_bw", "-n", "2000")
	t.Logf("another pair beside the stopped program took %v", time.Since(start))
	s.cmd.Process.Signal(syscall.SIGCONT)
	s.cmd.Process.Kill()
	l.pair(t, 20*time.Second, "a", "b", "ib_write_bw", "-n", "500")
}

// TestAssistFlag: a daemon that is told to leave copying to programs.
func TestAssistFlag(t *testing.T) {
	needProgram(t, "ib_write_bw")
	l := up(t, spec{wire: "mem", flags: []string{"--dma", "assist"}})
	s, c := l.startPair(t, 30*time.Second, "a", "b", "ib_write_bw", "-D", "2")
	eventually(t, 5*time.Second, "both programs copy by themselves", func() (bool, string) {
		w, _ := l.ways(t)
		return w["assist"] == 2, sorted(w)
	})
	c.wait(t)
	s.wait(t)
	if out := l.try(5*time.Second, "lab", "up", "two-hosts", "--dma", "never"); !strings.Contains(out, "exit 2") {
		t.Errorf("--dma never:\n%s", out)
	}
}

// TestAssistFigures prints the figures of docs/performance.md for the three modes; run it alone, with -v.
func TestAssistFigures(t *testing.T) {
	needProgram(t, "ib_write_bw", "ib_write_lat")
	for _, mode := range []string{"1", "2", "3"} {
		t.Run("mode "+mode, func(t *testing.T) {
			s := spec{wire: "mem"}
			if mode != "1" {
				s.as = []string{build(t, "tests/refuse"), mode}
			}
			l := up(t, s)
			_, bw := l.pair(t, 60*time.Second, "a", "b", "ib_write_bw", "-s", "65536", "-D", "2", "--report_gbits")
			_, lat := l.pair(t, 60*time.Second, "a", "b", "ib_write_lat", "-s", "8", "-n", "3000")
			rows := table(lat)
			if len(rows) == 0 {
				t.Fatal(lat)
			}
			v := rows[len(rows)-1].values
			t.Logf("mode %s: ib_write_bw 64 KiB %.1f Gbit/s; ib_write_lat p50 %.1f, average %.1f, p99 %.1f µs", mode, gbits(t, bw), v[2], v[3], v[5])
		})
	}
}
