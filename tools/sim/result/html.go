package result

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strconv"
)

//go:embed report.html.tmpl
var reportText string

var report = template.Must(template.New("report").Parse(reportText))

// planesMost is more planes than any plan has: a stranger's result may say what it likes.
const planesMost = 1 << 10

// shown bounds the tables of flows and links in a report; the CSV files have all.
const shown = 50

// page is what the template is filled with.
type page struct {
	R                                               *Result
	What, Setup, Summary, Cost                      []Pair
	Groups, Planes, Links, Slowest, Failed, Missing sheet
	Plots                                           []inlined
}

// sheet is a table and how many rows it does not show.
type sheet struct {
	Head []string
	Rows [][]string
	More int
	File string
}

type inlined struct {
	Alt string
	SVG template.HTML
}

func (s *sheet) add(n int, cells ...string) {
	if len(s.Rows) < n {
		s.Rows = append(s.Rows, cells)
	} else {
		s.More++
	}
}

// WriteHTML writes the report: one page that fetches nothing and has no script. What the plan says is a stranger's text and
// is escaped.
func (r *Result) WriteHTML(w io.Writer) error {
	figures, err := r.Figures()
	if err != nil {
		return err
	}
	return r.writeHTML(w, figures)
}

func (r *Result) writeHTML(w io.Writer, figures []Figure) error {
	p := page{R: r, Setup: r.Setup.Lines()}
	for i := range figures {
		text, err := figures[i].inline()
		if err != nil {
			return err
		}
		p.Plots = append(p.Plots, inlined{figures[i].Alt, template.HTML(text)}) //nolint:gosec // drawn above; its texts are escaped there
	}
	p.What = []Pair{{"plan", r.Plan}, {"seed", strconv.FormatUint(r.Seed, 10)}, {"commit", r.Commit}, {"hash", r.Hash}}
	p.Summary = r.summary()
	p.Cost = []Pair{{"events", strconv.FormatUint(r.Summary.Events, 10)}, {"hops", strconv.FormatUint(r.Summary.Hops, 10)},
		{"wall time", fmt.Sprintf("%.2f s on %d threads", r.Cost.WallSeconds, r.Cost.Threads)}, {"speed", HopRate(r.Cost.HopsPerSec)},
		{"memory", fmt.Sprintf("%.0f MiB", float64(r.Cost.RSSBytes)/(1<<20))}}
	p.Groups = sheet{Head: []string{"group", "hosts", "size(B)", "time(us)", "algbw(GB/s)", "busbw(GB/s)"}, File: "groups.csv"}
	for i := range r.Groups {
		p.Groups.add(200, groupCells(&r.Groups[i])...)
	}
	p.Planes, p.Links = r.planes(), r.busiest()
	r.flowSheets(&p)
	if err := report.Execute(w, &p); err != nil {
		return fmt.Errorf("cannot write the report: %w", err)
	}
	return nil
}

func (r *Result) summary() []Pair {
	s := &r.Summary
	return []Pair{
		{"flows", fmt.Sprintf("%d, of which %d are done and %d failed", s.Flows, s.Done, s.Errors)},
		{"virtual time", micros(s.Seconds) + " us"},
		{"flow completion", fmt.Sprintf("min %s, p50 %s, p99 %s, max %s us", micros(s.FCTMin), micros(s.FCTP50), micros(s.FCTP99), micros(s.FCTMax))},
		{"goodput", fmt.Sprintf("%.2f Gbit/s, %s %% of what the receivers' links carry", s.Goodput/1e9, percent(s.GoodputShare))},
		{"fairness", fmt.Sprintf("Jain's index %.4f, slowest over fastest %.4f", s.Jain, s.MinMax)},
		{"data packets", fmt.Sprintf("%d, of which %d retransmissions", s.DataPackets, s.Retransmits)},
		{"lost", fmt.Sprintf("%d dropped at queues, %d on the wire", s.Dropped, s.Lost)},
		{"trims, marks", fmt.Sprintf("%d trimmed, %d marked", s.Trimmed, s.Marked)},
		{"pauses", fmt.Sprintf("%d frames, %s us of ports", s.PauseFrames, micros(s.PausedSeconds))},
		{"longest queue", kib(s.QueueMax) + " KiB"},
	}
}

// planes sums links up by plane.
func (r *Result) planes() sheet {
	t := sheet{Head: []string{"plane", "links", "packets to hosts", "bytes to hosts", "mean use to hosts(%)", "max use of a link(%)", "dropped", "lost", "marked"}}
	type sum struct {
		links, toHosts                        int
		packets, bytes, dropped, lost, marked uint64
		use, most                             float64
	}
	var all []sum
	for i := range r.Links {
		l := &r.Links[i]
		if l.Plane < 0 || l.Plane >= planesMost {
			continue
		}
		for len(all) <= l.Plane {
			all = append(all, sum{})
		}
		s := &all[l.Plane]
		s.links++
		s.dropped, s.lost, s.marked, s.most = s.dropped+l.Dropped, s.lost+l.Lost, s.marked+l.Marked, max(s.most, l.Use)
		if _, to, _, _, ok := ends(l.Name); ok && to == "host" {
			s.toHosts++
			s.packets, s.bytes, s.use = s.packets+l.Packets, s.bytes+l.Bytes, s.use+l.Use
		}
	}
	for i, s := range all {
		t.add(len(all), strconv.Itoa(i), strconv.Itoa(s.links), fmt.Sprint(s.packets), fmt.Sprint(s.bytes), percent(s.use/float64(max(s.toHosts, 1))),
			percent(s.most), fmt.Sprint(s.dropped), fmt.Sprint(s.lost), fmt.Sprint(s.marked))
	}
	return t
}

// busiest lists the links with the highest use.
func (r *Result) busiest() sheet {
	t := sheet{Head: []string{"link", "packets", "bytes", "use(%)", "queue max(KiB)", "dropped", "marked", "trimmed", "lost", "paused(us)"}, File: "links.csv"}
	order := make([]*Link, len(r.Links))
	for i := range r.Links {
		order[i] = &r.Links[i]
	}
	slices.SortStableFunc(order, func(a, b *Link) int { return cmp.Compare(b.Use, a.Use) })
	for _, l := range order {
		t.add(shown, l.Name, fmt.Sprint(l.Packets), fmt.Sprint(l.Bytes), percent(l.Use), kib(l.QueueMax), fmt.Sprint(l.Dropped), fmt.Sprint(l.Marked),
			fmt.Sprint(l.Trimmed), fmt.Sprint(l.Lost), micros(l.Paused))
	}
	return t
}

// flowSheets sorts flows into the slowest, the failed and those that had not ended.
func (r *Result) flowSheets(p *page) {
	head := []string{"flow", "from", "to", "group", "step", "size(B)", "posted(us)"}
	with := func(more ...string) []string { return append(head[:len(head):len(head)], more...) }
	p.Slowest = sheet{Head: with("time(us)", "rate(Gbit/s)"), File: FlowsFile}
	p.Failed = sheet{Head: with("error"), File: FlowsFile}
	p.Missing = sheet{Head: with("received(us)"), File: FlowsFile}
	var done []*Flow
	for i := range r.Flows {
		f := &r.Flows[i]
		_, ok := f.FCT()
		switch {
		case ok:
			done = append(done, f)
		case f.Error != "":
			p.Failed.add(shown, append(r.flowCells(f), f.Error)...)
		default:
			p.Missing.add(shown, append(r.flowCells(f), when(f.Received))...)
		}
	}
	slices.SortStableFunc(done, func(a, b *Flow) int { return cmp.Compare(b.Acked-b.Start, a.Acked-a.Start) })
	for _, f := range done {
		t, rate := f.Acked-f.Start, "-"
		if t > 0 {
			rate = fmt.Sprintf("%.2f", float64(f.Size)*8/t/1e9)
		}
		p.Slowest.add(shown, append(r.flowCells(f), micros(t), rate)...)
	}
}

func (r *Result) flowCells(f *Flow) []string {
	group := strconv.Itoa(f.Group)
	if f.Group >= 0 && f.Group < len(r.Groups) {
		group = r.Groups[f.Group].Name
	}
	return []string{strconv.Itoa(f.ID), strconv.Itoa(f.From), strconv.Itoa(f.To), group, strconv.Itoa(f.Step), strconv.FormatInt(f.Size, 10), when(f.Start)}
}

// when is a time in microseconds, or never.
func when(s float64) string {
	if s < 0 {
		return "never"
	}
	return micros(s)
}
