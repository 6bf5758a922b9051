package figures

import (
	"bytes"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/metaroce/metaroce/tools/sim/plan"
	"github.com/metaroce/metaroce/tools/sim/plans"
	"github.com/metaroce/metaroce/tools/sim/result"
)

// Options of Write.
type Options struct {
	Out     string // directory of plots, tables and README.md
	Work    string // directory that holds NAME.sweep of each sweep
	Commit  string // of the program
	Quick   bool
	Command string // that made it
	Scale   []byte // Markdown of the flow level's table
}

// writer writes one set.
type writer struct {
	*Set
	Options
	b    bytes.Buffer
	runs [][]string
	seen map[string]bool // runs that are in the list
}

// cell is a point of a line.
type cell struct {
	x float64
	r *result.Result
}

// Write draws all figures from the sweeps' points and writes README.md and runs.csv. Points that are missing are named in the text.
func (s *Set) Write(o Options) error {
	w := &writer{Set: s, Options: o, seen: map[string]bool{}}
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return err
	}
	w.head()
	for i := range s.Figures {
		if err := w.figure(&s.Figures[i]); err != nil {
			return fmt.Errorf("%s: %w", s.Figures[i].Name, err)
		}
	}
	w.b.Write(o.Scale)
	if err := w.plans(); err != nil {
		return err
	}
	if err := w.runsFile(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.Out, "README.md"), w.b.Bytes(), 0o644)
}

func (w *writer) head() {
	fmt.Fprintf(&w.b, "# Results of the simulator\n\nMade by `%s` from commit %s; not edited by hand. Every run has seed 1, whatever its plan says, and there is one run\n"+
		"a point. Plans are the ready ones (`mroce sim plans`), sweeps lie in `%s`; `runs.csv` lists every run with\nits values and the hash of its result. "+
		"Bandwidth is that of nccl-tests, decimal; sizes are binary.\n", w.Command, w.Commit, Dir)
	if w.Quick {
		w.b.WriteString("\n**A smoke test**: two points of each line, of smaller networks and with less work than the text says. Not results.\n")
	}
	w.b.WriteString("\nWhat the RoCEv2 shown here is, and how far it agrees with theory and other simulators: [sim-baselines.md](../sim-baselines.md).\n")
}

// figure writes one: plot, table, what is missing.
func (w *writer) figure(f *Figure) error {
	lines := make([][]cell, len(f.Lines))
	var missing []string
	for i := range f.Lines {
		var err error
		var gone []string
		if lines[i], gone, err = w.line(f, &f.Lines[i]); err != nil {
			return err
		}
		missing = append(missing, gone...)
	}
	if f.Chapter != "" {
		fmt.Fprintf(&w.b, "\n## %s\n", f.Chapter)
	}
	fmt.Fprintf(&w.b, "\n### %s\n\n", f.Title)
	if f.About != "" {
		fmt.Fprintf(&w.b, "%s\n\n", strings.TrimSpace(f.About))
	}
	drawn, err := w.draw(f, lines)
	if err != nil {
		return err
	}
	if drawn {
		fmt.Fprintf(&w.b, "![%s](%s.svg)\n\n", f.Title, f.Name)
	}
	if f.X != "" {
		err = w.table(f, lines)
	} else {
		err = w.lineTable(f, lines)
	}
	if len(missing) > 0 {
		fmt.Fprintf(&w.b, "\nWithout a whole result, and left out: %s.\n", counted(missing))
	}
	var sweeps []string
	for _, l := range f.Lines {
		if !slices.Contains(sweeps, l.Sweep) {
			sweeps = append(sweeps, l.Sweep)
		}
	}
	fmt.Fprintf(&w.b, "\nSweeps: %s.\n", strings.Join(sweeps, ", "))
	return err
}

// counted names runs that are missing, where they are many by their sweeps.
func counted(missing []string) string {
	if len(missing) <= 3 {
		return strings.Join(missing, "; ")
	}
	var sweeps []string
	count := map[string]int{}
	for _, m := range missing {
		s, _, _ := strings.Cut(m, "/")
		if count[s]++; count[s] == 1 {
			sweeps = append(sweeps, s)
		}
	}
	for i, s := range sweeps {
		sweeps[i] = fmt.Sprintf("%d of %s", count[s], s)
	}
	return strings.Join(sweeps, ", ")
}

// line reads the results of a line's points.
func (w *writer) line(f *Figure, l *Line) (cells []cell, missing []string, err error) {
	s, at := w.points(l)
	for _, i := range at {
		p := &s.Points[i]
		x := 0.0
		if f.X != "" {
			if x, err = f.along(p); err != nil {
				return nil, nil, err
			}
		}
		file, err := os.Open(filepath.Join(w.Work, l.Sweep+".sweep", "points", p.Name, "result.json"))
		if errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, l.Sweep+"/"+p.Name)
			continue
		} else if err != nil {
			return nil, nil, err
		}
		r, err := result.ReadJSON(file)
		file.Close()
		if err != nil {
			return nil, nil, fmt.Errorf("%s/%s: %w", l.Sweep, p.Name, err)
		}
		cells = append(cells, cell{x, r})
		w.run(l.Sweep, p.Name, s.Plan, r)
	}
	return cells, missing, nil
}

// run puts a run into the list, once.
func (w *writer) run(sweepName, point, planName string, r *result.Result) {
	if key := sweepName + "/" + point; !w.seen[key] {
		w.seen[key] = true
		s := &r.Summary
		bus := 0.0
		if len(r.Groups) > 0 {
			bus = r.Groups[0].BusBps
		}
		num := func(v float64) string { return strconv.FormatFloat(v, 'g', 7, 64) }
		w.runs = append(w.runs, []string{sweepName, point, planName, planDigest(planName), strconv.FormatUint(r.Seed, 10), r.Setup.Transport, num(s.FCTP50), num(s.FCTP99),
			num(s.FCTMax), num(s.Goodput), num(s.GoodputShare), num(bus), num(s.Jain), strconv.FormatUint(s.Retransmits, 10), strconv.FormatUint(s.Dropped, 10),
			strconv.FormatUint(s.Lost, 10), strconv.FormatUint(s.PauseFrames, 10), strconv.Itoa(s.Errors), r.Hash})
	}
}

func (w *writer) draw(f *Figure, lines [][]cell) (bool, error) {
	var results []*result.Result
	var series []string
	var xs []float64
	for i, cells := range lines {
		for _, c := range cells {
			results, series, xs = append(results, c.r), append(series, f.Lines[i].Label), append(xs, c.x)
		}
	}
	if len(results) == 0 {
		return false, nil
	}
	var plot *result.Figure
	var err error
	if f.X == "" {
		plot, err = result.TimeLines(results, series, f.Name, f.Title)
	} else {
		plot, err = result.Compare(results, f.X, result.CompareOptions{Name: f.Name, Title: f.Title, Y: f.Y, Series: series, X: xs, LogX: f.LogX,
			XLabel: f.XLabel, YLabel: f.YLabel, Scale: f.Scale})
	}
	if err != nil {
		return false, err
	}
	var b bytes.Buffer
	if err := plot.WriteSVG(&b); err != nil {
		return false, err
	}
	return true, os.WriteFile(filepath.Join(w.Out, f.Name+".svg"), b.Bytes(), 0o644)
}

// table has a row for each place along the axis, and a column for each line.
func (w *writer) table(f *Figure, lines [][]cell) error {
	var xs []float64
	for _, cells := range lines {
		for _, c := range cells {
			if !slices.Contains(xs, c.x) {
				xs = append(xs, c.x)
			}
		}
	}
	slices.Sort(xs)
	fmt.Fprintf(&w.b, "%s:\n\n| %s |", f.TLabel, f.XLabel)
	for _, l := range f.Lines {
		fmt.Fprintf(&w.b, " %s |", l.Label)
	}
	fmt.Fprintf(&w.b, "\n|%s\n", strings.Repeat("---|", len(f.Lines)+1))
	for _, x := range xs {
		fmt.Fprintf(&w.b, "| %s |", f.place(x))
		for _, cells := range lines {
			text := ""
			if i := slices.IndexFunc(cells, func(c cell) bool { return c.x == x }); i >= 0 {
				v, err := cells[i].r.Value(f.Table)
				if err != nil {
					return err
				}
				text = number(v * f.TScale)
				if n := cells[i].r.Summary.Errors; n > 0 {
					text += fmt.Sprintf(" (%d failed)", n)
				}
			}
			fmt.Fprintf(&w.b, " %s |", text)
		}
		w.b.WriteByte('\n')
	}
	return nil
}

// lineTable has a row for each line of a figure over time.
func (w *writer) lineTable(f *Figure, lines [][]cell) error {
	w.b.WriteString("| | goodput from the change on, share of all links | slowest request, µs | failed | lost on wires | retransmitted |\n|---|---|---|---|---|---|\n")
	for i, cells := range lines {
		for _, c := range cells {
			s := &c.r.Summary
			fmt.Fprintf(&w.b, "| %s | %.4f | %s | %d | %d | %d |\n", f.Lines[i].Label, s.GoodputShare, number(s.FCTMax*1e6), s.Errors, s.Lost, s.Retransmits)
		}
	}
	return nil
}

// place is a value along the axis as the table has it.
func (f *Figure) place(x float64) string {
	if f.LogX && x >= 1024 {
		return plan.Bytes(int64(x))
	}
	return strconv.FormatFloat(x, 'g', 6, 64)
}

// number has four digits.
func number(v float64) string {
	if v >= 1000 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// plans lists the plans with the digests of their texts.
func (w *writer) plans() error {
	w.b.WriteString("\n## Plans\n\nSHA-256 of the texts, first 12 digits; `mroce sim show NAME` has more.\n\n| plan | digest |\n|---|---|\n")
	for _, name := range w.plansOf() {
		d := planDigest(name)
		if d == "" {
			return fmt.Errorf("no plan %s", name)
		}
		fmt.Fprintf(&w.b, "| `%s` | %s |\n", name, d)
	}
	return nil
}

func planDigest(name string) string {
	text, err := plans.Read(name)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:6])
}

func (w *writer) runsFile() error {
	var b bytes.Buffer
	c := csv.NewWriter(&b)
	head := []string{"sweep", "point", "plan", "plan_sha256", "seed", "transport", "fct_p50_s", "fct_p99_s", "fct_max_s", "goodput_bps", "goodput_share", "busbw_bps", "jain",
		"retransmissions", "dropped_queue", "lost_on_wire", "pause_frames", "flows_failed", "hash"}
	if err := c.WriteAll(append([][]string{head}, w.runs...)); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(w.Out, "runs.csv"), b.Bytes(), 0o644)
}
