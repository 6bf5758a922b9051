// Package pairwise holds the combinations in which the live tests run Debian's perftest: all of them, and a small fixed
// table in which every pair of values occurs. The table is matrix.txt; `go test ./tests/live/pairwise -update` writes it.
package pairwise

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
)

// Row is one run of a program.
type Row struct {
	Wire    string // tap, udp, mem
	MTU     string // bytes of the RDMA path MTU
	Program string
	Size    string // bytes, "all" (-a), or "8" for atomics, which know no other
	QPs     string
	Mode    string // plain, bidir (-b), events (-e)
}

// String returns the row as in matrix.txt.
func (r Row) String() string {
	return strings.Join([]string{r.Wire, r.MTU, r.Program, r.Size, r.QPs, r.Mode}, " ")
}

func (r Row) values() [6]string { return [6]string{r.Wire, r.MTU, r.Program, r.Size, r.QPs, r.Mode} }

var (
	wires    = []string{"mem", "tap", "udp"}
	mtus     = []string{"1024", "4096"}
	programs = []string{"ib_write_bw", "ib_send_bw", "ib_read_bw", "ib_atomic_bw", "ib_write_lat", "ib_send_lat", "ib_read_lat", "ib_atomic_lat"}
	sizes    = []string{"1", "8", "64", "4096", "65536", "1048576", "8388608", "all"}
	qps      = []string{"1", "16", "256"}
	modes    = []string{"plain", "bidir", "events"}
)

// valid leaves out what perftest does not offer, and what would only test the machine's memory.
func (r Row) valid() bool {
	atomic := strings.HasPrefix(r.Program, "ib_atomic")
	latency := strings.HasSuffix(r.Program, "_lat")
	big := r.Size == "1048576" || r.Size == "8388608" || r.Size == "all"
	switch {
	case atomic != (r.Size == "8"): // 8 stands for "no -s" and belongs to the atomics
		return false
	case latency && (r.QPs != "1" || r.Mode == "bidir"):
		return false
	case r.Mode == "events" && strings.HasPrefix(r.Program, "ib_write"):
		return false
	case r.Mode == "events" && r.QPs == "256": // perftest 4.5 takes 16 completions an event; with more it waits for ever, on any NIC
		return false
	case r.QPs == "256" && big: // a buffer per QP: gigabytes at each end
		return false
	}
	return true
}

// All returns every combination that makes sense, grouped by lab (wire and MTU).
func All() []Row {
	var rows []Row
	for _, w := range wires {
		for _, m := range mtus {
			for _, p := range programs {
				for _, s := range sizes {
					for _, q := range qps {
						for _, mode := range modes {
							if r := (Row{w, m, p, s, q, mode}); r.valid() {
								rows = append(rows, r)
							}
						}
					}
				}
			}
		}
	}
	return rows
}

//go:embed matrix.txt
var matrix string

// Table returns the fixed table.
func Table() ([]Row, error) {
	var rows []Row
	for n, line := range strings.Split(strings.TrimSpace(matrix), "\n") {
		f := strings.Fields(line)
		if strings.HasPrefix(line, "#") {
			continue
		}
		if len(f) != 6 {
			return nil, fmt.Errorf("matrix.txt:%d: %d columns, want 6", n+1, len(f))
		}
		rows = append(rows, Row{f[0], f[1], f[2], f[3], f[4], f[5]})
	}
	return rows, nil
}

// pair is two values in two columns.
type pair struct {
	i, j int
	a, b string
}

func (r Row) pairs() []pair {
	v := r.values()
	var ps []pair
	for i := range v {
		for j := i + 1; j < len(v); j++ {
			ps = append(ps, pair{i, j, v[i], v[j]})
		}
	}
	return ps
}

// generate picks rows until every pair that occurs in some combination occurs in a picked one, each time the row with
// the most new pairs. Not the smallest table there is, but a small one, and always the same.
func generate() []Row {
	all := All()
	open := map[pair]bool{}
	for _, r := range all {
		for _, p := range r.pairs() {
			open[p] = true
		}
	}
	var picked []Row
	used := map[string]int{} // rows a value occurs in: among equals the row with the rarest values, so that no wire is favoured
	for len(open) > 0 {
		best, most := Row{}, 0
		for _, r := range all {
			n := 0
			for _, p := range r.pairs() {
				if open[p] {
					n += 1000
				}
			}
			for _, v := range r.values() {
				n -= used[v]
			}
			if n > most {
				best, most = r, n
			}
		}
		for _, v := range best.values() {
			used[v]++
		}
		for _, p := range best.pairs() {
			delete(open, p)
		}
		picked = append(picked, best)
	}
	slices.SortFunc(picked, func(a, b Row) int { return slices.Index(all, a) - slices.Index(all, b) })
	return picked
}
