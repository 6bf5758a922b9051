//go:build live

package live

import (
	"testing"
	"time"
)

// TestLatency: two programs that spin beside the daemon on few cores. Without the rules of docs/adr/0007 p99 is a time slice
// of the kernel, milliseconds. Reported; the bound is 1 ms, with five tries, since the machine is shared.
func TestLatency(t *testing.T) {
	l := up(t, spec{wire: "tap"})
	for _, program := range []string{"ib_send_lat", "ib_write_lat"} {
		t.Run(program, func(t *testing.T) {
			best := 0.0
			for range 5 {
				_, out := l.pair(t, 30*time.Second, "a", "b", program, "-s", "8", "-n", "5000")
				rows := table(out)
				if len(rows) != 1 || len(rows[0].values) < 7 {
					t.Fatalf("no latency table:\n%s", out)
				}
				p50, p99 := rows[0].values[2], rows[0].values[5]
				t.Logf("%s 8 B: p50 %.1f µs, p99 %.1f µs, p99.9 %.1f µs", program, p50, p99, rows[0].values[6])
				if best == 0 || p99 < best {
					best = p99
				}
				if best < 1000 {
					return
				}
			}
			t.Errorf("p99 is %.0f µs at best, want under 1000", best)
		})
	}
}
