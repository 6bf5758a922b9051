package result

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// groupsShown bounds the table of groups on a terminal; the files have all.
const groupsShown = 40

// Text writes the result for a terminal: what was run, a table of groups with the columns of nccl-tests, flows, packets, and
// last what the simulation cost.
func (r *Result) Text(w io.Writer) error {
	var b bytes.Buffer
	r.textHead(&b)
	r.textGroups(&b)
	r.textFlows(&b)
	s := &r.Summary
	fmt.Fprintf(&b, "hash %s\n", r.Hash)
	if r.Partial {
		fmt.Fprintf(&b, "PARTIAL: %s\n", Clean(r.Why))
	}
	fmt.Fprintf(&b, "%d events, %d hops, %s; %.2f s with building and connecting\n", s.Events, s.Hops, HopRate(r.Cost.HopsPerSec), r.Cost.WallSeconds)
	_, err := w.Write(b.Bytes())
	return err
}

// HopRate prints hops of packets a second.
func HopRate(x float64) string {
	if x < 1e6 {
		return fmt.Sprintf("%.0f thousand hops/s", x/1e3)
	}
	return fmt.Sprintf("%.2f million hops/s", x/1e6)
}

func (r *Result) textHead(b *bytes.Buffer) {
	if r.Partial {
		fmt.Fprintf(b, "PARTIAL: %s\n", Clean(r.Why))
	}
	fmt.Fprint(b, Clean(r.Plan))
	if r.Title != "" {
		fmt.Fprintf(b, ": %s", Clean(r.Title))
	}
	fmt.Fprintf(b, "\nseed %d, %.6g ms of virtual time\n", r.Seed, r.Summary.Seconds*1e3)
	for _, row := range r.Setup.Lines() {
		fmt.Fprintf(b, "%-10s %s\n", row.Name, Clean(row.Text))
	}
}

// Pair is a line of the setup.
type Pair struct{ Name, Text string }

// Lines says the setup in lines for people; texts are those of the plan.
func (s *Setup) Lines() []Pair {
	planes := "1 plane"
	if s.Planes != 1 {
		planes = fmt.Sprintf("%d planes", s.Planes)
	}
	transport := s.Transport
	if s.NIC != "" {
		transport += ", NIC " + s.NIC
	}
	list := []Pair{
		{"network", fmt.Sprintf("%s; %s, %s Gbit/s to each host", s.Topology, planes, gbit(float64(s.RateBps)))},
		{"packets", fmt.Sprintf("MTU %d B, %d B on the wire, RTT %s us", s.MTU, s.WireBytes, micros(s.RTT))},
		{"switches", s.switches()},
		{"transport", transport},
	}
	if s.Workload != "" {
		list = append(list, Pair{"workload", s.Workload})
	}
	for _, e := range s.Changes {
		list = append(list, Pair{"event", e})
	}
	return list
}

func (s *Setup) switches() string {
	parts := []string{"queue without bound"}
	if s.QueueBytes > 0 {
		parts[0] = fmt.Sprintf("queue %s KiB", kib(s.QueueBytes))
	}
	if s.ECNMax > 0 {
		parts = append(parts, fmt.Sprintf("ECN %s to %s KiB", kib(s.ECNMin), kib(s.ECNMax)))
	} else {
		parts = append(parts, "no ECN")
	}
	for _, x := range []struct {
		on   bool
		name string
	}{{s.Trim, "trimming"}, {s.PFC, "PFC"}} {
		if x.on {
			parts = append(parts, x.name)
		} else {
			parts = append(parts, "no "+x.name)
		}
	}
	return strings.Join(parts, ", ")
}

func (r *Result) textGroups(b *bytes.Buffer) {
	if len(r.Groups) == 0 {
		return
	}
	t := table{{"group", "hosts", "size(B)", "time(us)", "algbw(GB/s)", "busbw(GB/s)"}}
	for i := range min(len(r.Groups), groupsShown) {
		t = append(t, groupCells(&r.Groups[i]))
	}
	b.WriteByte('\n')
	t.write(b)
	if n := len(r.Groups) - groupsShown; n > 0 {
		fmt.Fprintf(b, "and %d more groups\n", n)
	}
}

func groupCells(g *Group) []string {
	cells := []string{Clean(g.Name), strconv.Itoa(g.Hosts), strconv.FormatInt(g.Size, 10)}
	if !g.Done {
		return append(cells, "not done", "-", "-")
	}
	bus := "-"
	if g.BusBps > 0 {
		bus = gbyte(g.BusBps)
	}
	return append(cells, micros(g.Seconds), gbyte(g.AlgBps), bus)
}

func (r *Result) textFlows(b *bytes.Buffer) {
	s := &r.Summary
	d := func(n uint64) string { return strconv.FormatUint(n, 10) }
	b.WriteByte('\n')
	table{
		{"flows", "done", "failed", "min(us)", "p50(us)", "p99(us)", "max(us)", "goodput(Gbit/s)", "of links(%)", "Jain", "min/max"},
		{strconv.Itoa(s.Flows), strconv.Itoa(s.Done), strconv.Itoa(s.Errors), micros(s.FCTMin), micros(s.FCTP50), micros(s.FCTP99), micros(s.FCTMax),
			fmt.Sprintf("%.2f", s.Goodput/1e9), percent(s.GoodputShare), fmt.Sprintf("%.4f", s.Jain), fmt.Sprintf("%.4f", s.MinMax)},
	}.write(b)
	b.WriteByte('\n')
	table{
		{"data packets", "retransmitted", "dropped", "lost", "trimmed", "marked", "pauses", "paused(us)", "queue max(KiB)"},
		{d(s.DataPackets), d(s.Retransmits), d(s.Dropped), d(s.Lost), d(s.Trimmed), d(s.Marked), d(s.PauseFrames), micros(s.PausedSeconds), kib(s.QueueMax)},
	}.write(b)
	b.WriteByte('\n')
}

// table has a header and rows: numbers are flush right, names in the first column flush left.
type table [][]string

func (t table) write(b *bytes.Buffer) {
	width := make([]int, len(t[0]))
	for _, row := range t {
		for i, c := range row {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	_, err := strconv.Atoi(t[len(t)-1][0])
	for _, row := range t {
		for i, c := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			switch {
			case i > 0:
				b.WriteString("  " + pad + c)
			case err == nil:
				b.WriteString(pad + c)
			default:
				b.WriteString(c + pad)
			}
		}
		b.WriteByte('\n')
	}
}

func micros(s float64) string  { return strconv.FormatFloat(s*1e6, 'f', 2, 64) }
func gbit(bps float64) string  { return strconv.FormatFloat(bps/1e9, 'f', -1, 32) }
func gbyte(bps float64) string { return strconv.FormatFloat(bps/8e9, 'f', 2, 64) }
func percent(x float64) string { return strconv.FormatFloat(100*x, 'f', 2, 64) }
func kib(n int) string         { return strconv.FormatFloat(math.Round(float64(n)/102.4)/10, 'f', -1, 64) }

// Clean takes what steers a terminal, and bytes that are no UTF-8, out of a stranger's text.
func Clean(s string) string {
	return strings.Map(func(c rune) rune {
		if !unicode.IsGraphic(c) {
			return unicode.ReplacementChar
		}
		return c
	}, strings.ToValidUTF8(s, string(unicode.ReplacementChar)))
}
