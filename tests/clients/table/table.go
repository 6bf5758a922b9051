// Package table holds docs/compatibility.md: which program does what over our NIC. The document is the table that the tests
// compare with, so that there is one copy, and what people read is what was run.
package table

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Result of a row, from bad to good.
type Result string

const (
	Fails  Result = "fails"
	NotYet Result = "not yet" // the NIC says that it has no such thing, and the program says so
	None   Result = "no"      // likewise, and none is planned
	OK     Result = "ok"
)

func (r Result) rank() int { return slices.Index([]Result{Fails, NotYet, None, OK}, r) }

// Worse reports whether r is a step back from kept.
func (r Result) Worse(kept Result) bool { return r.rank() < kept.rank() }

// Row is a line of the table. Suite, program and feature name it.
type Row struct {
	Suite, Program, Feature, Network string
	Result                           Result
}

func (r Row) name() string { return r.Suite + " | " + r.Program + " | " + r.Feature }

func (r Row) String() string {
	return fmt.Sprintf("%-8s %-18s %-42s %s", r.Result, r.Program, r.Feature, r.Network)
}

const heading, columns, ruler = "## ", "| program | feature | network | result |", "|---|---|---|---|"

// Parse reads the rows of a document that Write wrote.
func Parse(text string) ([]Row, error) {
	var rows []Row
	suite, inside := "", false
	for n, line := range strings.Split(text, "\n") {
		switch {
		case strings.HasPrefix(line, heading):
			suite, inside = strings.TrimPrefix(line, heading), false
		case line == columns:
			inside = true
		case !strings.HasPrefix(line, "|"):
			inside = false
		case inside && line != ruler:
			cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, "| "), " |"), " | ")
			if len(cells) != 4 {
				return nil, fmt.Errorf("line %d: %d cells, not 4: %s", n+1, len(cells), line)
			}
			r := Row{suite, strings.Trim(cells[0], "`"), cells[1], cells[2], Result(cells[3])}
			if r.Result.rank() < 0 {
				return nil, fmt.Errorf("line %d: no result %q", n+1, r.Result)
			}
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// Write makes the document: words in front, then a table for each suite in the order of rows; under its heading what about says.
func Write(front string, about map[string]string, rows []Row) string {
	var b strings.Builder
	b.WriteString(front)
	for i, r := range rows {
		if i == 0 || rows[i-1].Suite != r.Suite {
			fmt.Fprintf(&b, "\n%s%s\n", heading, r.Suite)
			if a := about[r.Suite]; a != "" {
				b.WriteString(a + "\n\n")
			}
			b.WriteString(columns + "\n" + ruler + "\n")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", r.Program, r.Feature, r.Network, r.Result)
	}
	return b.String()
}

// Front returns what stands in a document before its first table's heading.
func Front(text string) string {
	i := strings.Index(text, "\n"+columns+"\n")
	if i < 0 {
		return text
	}
	return text[:max(strings.LastIndex(text[:i], "\n"+heading), 0)]
}

// Difference is what a run says that the kept table does not.
type Difference struct {
	Worse, Better []string // "suite | program | feature: kept, now"
	New           []string // rows that the table does not have
	Gone          []string // rows of the table that nobody runs any more
}

// Compare compares the rows that ran with the kept ones; plan is all rows there are, run or not.
func Compare(kept, plan, ran []Row) Difference {
	old, now := map[string]Row{}, map[string]bool{}
	for _, r := range kept {
		old[r.name()] = r
	}
	var d Difference
	for _, r := range plan {
		now[r.name()] = true
		if _, ok := old[r.name()]; !ok {
			d.New = append(d.New, r.name())
		}
	}
	for _, r := range ran {
		k, ok := old[r.name()]
		text := fmt.Sprintf("%s: %s, now %s", r.name(), k.Result, r.Result)
		switch {
		case !ok: // new, see above
		case r.Result.Worse(k.Result):
			d.Worse = append(d.Worse, text)
		case k.Result.Worse(r.Result):
			d.Better = append(d.Better, text)
		}
	}
	for _, r := range kept {
		if !now[r.name()] {
			d.Gone = append(d.Gone, r.name())
		}
	}
	return d
}

// Merge returns the plan's rows with the results of ran, or of kept where a row did not run; a row that never ran is left out.
func Merge(kept, plan, ran []Row) []Row {
	result := map[string]Result{}
	for _, r := range slices.Concat(kept, ran) {
		result[r.name()] = r.Result
	}
	var rows []Row
	for _, r := range plan {
		if r.Result = result[r.name()]; r.Result != "" {
			rows = append(rows, r)
		}
	}
	return rows
}

// Count says how many rows have each result.
func Count(rows []Row) string {
	n := map[Result]int{}
	for _, r := range rows {
		n[r.Result]++
	}
	var parts []string
	for r, k := range n {
		parts = append(parts, fmt.Sprintf("%d %s", k, r))
	}
	slices.SortFunc(parts, func(a, b string) int { return cmp.Compare(b, a) })
	return strings.Join(parts, ", ")
}
