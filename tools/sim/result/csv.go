package result

import (
	"encoding/csv"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
)

// The columns of the CSV files are the names of the JSON fields, units included, in their order; each row says whether the
// result is partial. The form is that of RFC 4180: CRLF, and quotes where they are needed.

// WriteFlowsCSV writes a row a flow, with fct_s beside its fields: empty where it did not end well.
func (r *Result) WriteFlowsCSV(w io.Writer) error {
	return writeRows(w, r.Partial, r.Flows, []string{"fct_s"}, func(f *Flow) []string {
		if t, ok := f.FCT(); ok {
			return []string{number(t)}
		}
		return []string{""}
	})
}

// WriteLinksCSV writes a row a direction of a link.
func (r *Result) WriteLinksCSV(w io.Writer) error {
	return writeRows(w, r.Partial, r.Links, nil, func(*Link) []string { return nil })
}

// WriteGroupsCSV writes a row a group.
func (r *Result) WriteGroupsCSV(w io.Writer) error {
	return writeRows(w, r.Partial, r.Groups, nil, func(*Group) []string { return nil })
}

// WriteLineCSV writes a row a stretch of the time line, with a column plane0_bps, plane1_bps … for each plane.
func (r *Result) WriteLineCSV(w io.Writer) error {
	n := min(max(r.Setup.Planes, 0), planesMost)
	for i := range r.Line {
		n = max(n, len(r.Line[i].PerPlane))
	}
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("plane%d_bps", i))
	}
	return writeRows(w, r.Partial, r.Line, names, func(b *Bin) []string {
		cells := make([]string, n)
		for i, v := range b.PerPlane {
			cells[i] = number(v)
		}
		return cells
	})
}

// WriteSummaryCSV writes one row: plan, seed, setup, summary, hash. What the run cost is not in it: the same seed gives the
// same bytes.
func (r *Result) WriteSummaryCSV(w io.Writer) error {
	names := []string{"plan", "title", "seed", "partial", "why"}
	cells := []string{r.Plan, r.Title, strconv.FormatUint(r.Seed, 10), strconv.FormatBool(r.Partial), r.Why}
	for _, v := range []any{r.Setup, r.Summary} {
		names = append(names, columns(reflect.TypeOf(v))...)
		cells = append(cells, values(reflect.ValueOf(v))...)
	}
	return writeCSV(w, append(names, "hash"), func(row func(...string)) { row(append(cells, r.Hash)...) })
}

func writeRows[T any](w io.Writer, partial bool, rows []T, more []string, extra func(*T) []string) error {
	names := append(columns(reflect.TypeFor[T]()), more...)
	return writeCSV(w, append(names, "partial"), func(row func(...string)) {
		for i := range rows {
			cells := append(values(reflect.ValueOf(&rows[i]).Elem()), extra(&rows[i])...)
			row(append(cells, strconv.FormatBool(partial))...)
		}
	})
}

func writeCSV(w io.Writer, names []string, rows func(row func(...string))) error {
	c := csv.NewWriter(w)
	c.UseCRLF = true
	_ = c.Write(names) // Error tells
	rows(func(cells ...string) { _ = c.Write(cells) })
	c.Flush()
	return c.Error()
}

// columns are the JSON names of a struct's fields; lists of numbers are left to the caller.
func columns(t reflect.Type) (names []string) {
	for f := range fields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

func values(v reflect.Value) (cells []string) {
	for f := range fields(v.Type()) {
		switch x := v.FieldByIndex(f.Index); x.Kind() {
		case reflect.Float64:
			cells = append(cells, number(x.Float()))
		case reflect.Slice: // of text
			cells = append(cells, strings.Join(x.Interface().([]string), "; "))
		default:
			cells = append(cells, fmt.Sprint(x.Interface()))
		}
	}
	return cells
}

func fields(t reflect.Type) func(yield func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			if f := t.Field(i); f.Type != reflect.TypeFor[[]float64]() && !yield(f) {
				return
			}
		}
	}
}

func number(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
