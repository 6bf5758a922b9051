//go:build live

package live

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/metaroce/metaroce/tests/live/pairwise"
)

// TestMatrix runs Debian's perftest over every wire with both MTUs, sizes from 1 B to 8 MiB, 1 to 256 QPs, polling and
// waiting for events, one way and both. By default the table in which each pair of values occurs, all with MR_LIVE=full.
func TestMatrix(t *testing.T) {
	needProgram(t, "ib_write_bw")
	rows, err := pairwise.Table()
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case want("full"):
		rows = pairwise.All()
	case !want("pairwise"):
		return
	}
	for len(rows) > 0 {
		n := 0
		for n < len(rows) && rows[n].Wire == rows[0].Wire && rows[n].MTU == rows[0].MTU {
			n++
		}
		group := rows[:n]
		rows = rows[n:]
		t.Run(group[0].Wire+"-"+group[0].MTU, func(t *testing.T) {
			mtu := map[string]int{"1024": 1500, "4096": 4300}[group[0].MTU]
			l := up(t, spec{wire: group[0].Wire, mtu: mtu})
			for _, r := range group {
				t.Run(strings.Join([]string{r.Program, r.Size, "q" + r.QPs, r.Mode}, "-"), func(t *testing.T) { runRow(t, l, r) })
			}
		})
	}
}

func runRow(t *testing.T, l *lab, r pairwise.Row) {
	latency := strings.HasSuffix(r.Program, "_lat")
	limit := 60 * time.Second
	if r.Size == "all" { // 23 tables, and perftest measures the clock of the CPU for half a second before each
		limit = 3 * time.Minute
	}
	_, out := l.pair(t, limit, "a", "b", r.Program, arguments(r)...)
	if t.Failed() {
		return
	}
	rows := table(out)
	want := 1
	if r.Size == "all" {
		want = 23 // 2 … 2^23
	}
	if len(rows) != want {
		t.Fatalf("%d lines in the table, want %d:\n%s", len(rows), want, brief(out))
	}
	for _, row := range rows {
		// The last but one column that every table has: average bandwidth, or the smallest latency.
		v := row.values[1]
		if latency {
			v = row.values[0]
		}
		// perftest rounds tiny bandwidths to 0.00 MiB/s; a latency is never 0.
		if v <= 0 && (latency || row.bytes > 64) {
			t.Errorf("nothing moved: %+v\n%s", row, brief(out))
		}
	}
	if mtu := "Mtu             : " + r.MTU; !strings.Contains(out, mtu) {
		t.Errorf("perftest does not report %q:\n%s", mtu, brief(out))
	}
}

// arguments of perftest for a row. The iterations move some MiB each, so that the whole stays short.
func arguments(r pairwise.Row) []string {
	const budget = 32 << 20
	qps := 1
	var args []string
	if n, err := strconv.Atoi(r.QPs); err == nil && n > 1 {
		qps = n
		args = append(args, "-q", r.QPs)
	}
	switch {
	case r.Size == "all":
		args = append(args, "-a", "-n", "5")
	default:
		size, _ := strconv.Atoi(r.Size)
		if size != 8 {
			args = append(args, "-s", r.Size)
		}
		args = append(args, "-n", strconv.Itoa(min(max(budget/size/qps, 5), max(1000/qps, 20))))
	}
	switch r.Mode {
	case "bidir":
		args = append(args, "-b")
	case "events":
		args = append(args, "-e")
	}
	return args
}
