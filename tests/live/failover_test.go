//go:build live

package live

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestPlanePulled: a plane goes away and comes back while ib_write_bw runs. The program must not notice, the other planes
// carry the load, and the plane is used again after its return.
func TestPlanePulled(t *testing.T) {
	for _, wire := range []string{"tap", "mem"} {
		t.Run(wire, func(t *testing.T) {
			l := up(t, spec{wire: wire})
			s, c := l.startPair(t, 40*time.Second, "a", "b", "ib_write_bw", "-D", "10", "--report_gbits")
			time.Sleep(2 * time.Second)
			before := l.speed(t, time.Second)
			l.nice(t, 5*time.Second, "lab", "plane", "2", "down")
			time.Sleep(200 * time.Millisecond)
			without := l.speed(t, time.Second)
			l.nice(t, 5*time.Second, "lab", "plane", "2", "up")
			time.Sleep(time.Second) // F38: bandwidth is back within a second
			after := l.speed(t, time.Second)
			out := c.wait(t)
			s.wait(t)
			t.Logf("bytes a second per plane\nbefore  %v\nwithout %v\nafter   %v\nperftest: %.2f Gbit/s", before, without, after, gbits(t, out))
			if before[2] == 0 {
				t.Error("plane 2 carried nothing before")
			}
			if sum(without) < sum(before)/4 {
				t.Error("the other planes did not take over")
			}
			if without[2] > before[2]/20 {
				t.Error("the pulled plane carried traffic")
			}
			if after[2] == 0 {
				t.Error("plane 2 is not used after its return")
			}
		})
	}
}

// TestAllPlanesPulled: when nothing can arrive any more, the program gets IBV_WC_RETRY_EXC_ERR (12) within
// timeout × (retry_cnt + 1), and the NIC goes on: F44.
func TestAllPlanesPulled(t *testing.T) {
	for _, c := range []struct {
		name       string
		cut, mend  []string
		qpTimeout  string
		upperBound time.Duration // 4.096 µs × 2^timeout × (7 + 1), as perftest sets retry_cnt
	}{
		{"down", []string{"lab", "impair", "down"}, []string{"lab", "impair", "up"}, "14", 540 * time.Millisecond},
		{"silent", []string{"lab", "impair", "loss=100%"}, []string{"lab", "impair", "loss=0"}, "16", 2150 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := up(t, spec{wire: "mem"})
			_, client := l.startPair(t, 30*time.Second, "a", "b", "ib_write_bw", "-D", "20", "-u", c.qpTimeout)
			time.Sleep(1500 * time.Millisecond)
			l.nice(t, 5*time.Second, c.cut...)
			start := time.Now()
			<-client.done
			took := time.Since(start)
			out := client.out.String()
			if client.err == nil || !strings.Contains(out, "status 12") {
				t.Errorf("want a failed program that names status 12, got %v:\n%s", client.err, out)
			}
			// A loaded machine may report late, never early by more than one timeout, and never not at all.
			if took > c.upperBound+2*time.Second {
				t.Errorf("the error came after %v, want about %v", took, c.upperBound)
			}
			t.Logf("error after %v (bound %v)", took, c.upperBound)
			l.nice(t, 5*time.Second, c.mend...)
			time.Sleep(500 * time.Millisecond)
			l.pair(t, 20*time.Second, "b", "a", "ib_write_bw", "-n", "200") // a fresh pair works at once
		})
	}
}

// planes returns how many bytes host b has sent on each plane.
func (l *lab) planes(t testing.TB) []float64 {
	t.Helper()
	var stats struct {
		NICs []struct {
			NIC    string
			Planes []struct{ Counters map[string]float64 }
		}
	}
	l.json(t, &stats, "stats")
	for _, n := range stats.NICs {
		if n.NIC == "b/mr0" {
			var tx []float64
			for _, p := range n.Planes {
				tx = append(tx, p.Counters["mroce_tx_bytes_total"])
			}
			return tx
		}
	}
	t.Fatalf("no NIC b/mr0 in %+v", stats)
	return nil
}

// speed measures bytes a second per plane over a while.
func (l *lab) speed(t testing.TB, over time.Duration) []float64 {
	t.Helper()
	first := l.planes(t)
	start := time.Now()
	time.Sleep(over)
	second := l.planes(t)
	for i := range second {
		second[i] = (second[i] - first[i]) / time.Since(start).Seconds()
	}
	return second
}

func sum(v []float64) (s float64) {
	for _, x := range v {
		s += x
	}
	return s
}

// TestLossSoak: ten percent of all packets lost, both ways, for a while: no program may see an error. Ten minutes with
// MR_LIVE=soak.
func TestLossSoak(t *testing.T) {
	seconds := 5
	if want("soak") {
		seconds = 600
	}
	l := up(t, spec{wire: "tap", impair: "  - {loss: 10%}"})
	for _, args := range [][]string{{"ib_send_bw", "-b"}, {"ib_read_bw", "-q", "8"}} {
		args = append(args, "-D", strconv.Itoa(seconds), "--report_gbits")
		_, out := l.pair(t, time.Duration(seconds+30)*time.Second, "a", "b", args[0], args[1:]...)
		t.Logf("%v: %.2f Gbit/s at 10 %% loss", args, gbits(t, out))
	}
}
