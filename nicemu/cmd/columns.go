package cmd

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"
)

// numeric is what stands to the right of its column.
var numeric = regexp.MustCompile(`^(-|[0-9]+(\.[0-9]+)?)$`)

// columns prints a table: the thing first, numbers to the right, two spaces between columns, none at the end of a line.
func columns(w io.Writer, head []string, rows [][]string) error {
	width := make([]int, len(head))
	right := make([]bool, len(head))
	for i, h := range head {
		width[i] = utf8.RuneCountInString(h)
		right[i] = i > 0 && len(rows) > 0
		for _, r := range rows {
			width[i] = max(width[i], utf8.RuneCountInString(r[i]))
			right[i] = right[i] && numeric.MatchString(r[i])
		}
	}
	for _, r := range append([][]string{head}, rows...) {
		var line strings.Builder
		for i, cell := range r {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if right[i] {
				cell, pad = pad+cell, ""
			}
			line.WriteString(cell + pad + "  ")
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}
