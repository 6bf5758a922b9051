package main

import (
	"fmt"
	"strings"
)

const rowBits = 32

// draw returns the drawing of a header, a row for every 32 bits, two characters a bit.
func draw(h *Header) []string {
	out := []string{
		" 0                   1                   2                   3",
		" 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1",
	}
	rule := strings.Repeat("+-", rowBits) + "+"
	var line strings.Builder
	at := 0 // bits drawn in this row
	for i := range h.Fields {
		f := &h.Fields[i]
		if f.Bits <= rowBits {
			if at == 0 {
				out = append(out, rule)
			}
			line.WriteString("|" + center(label(f), 2*f.Bits-1))
			if at += f.Bits; at == rowBits {
				out = append(out, line.String()+"|")
				line.Reset()
				at = 0
			}
			continue
		}
		// A long field: whole rows, its name in the middle one, no rule between them.
		rows := f.Bits / rowBits
		out = append(out, rule)
		for r := range 2*rows - 1 {
			switch {
			case r == rows-1:
				out = append(out, edge(r)+center(label(f), 2*rowBits-1)+edge(r))
			default:
				out = append(out, edge(r)+strings.Repeat(" ", 2*rowBits-1)+edge(r))
			}
		}
	}
	if t := h.Tail; t != nil {
		out = append(out, rule, "|"+center(fmt.Sprintf("%s (0 to %d words)", t.Name, t.Words), 2*rowBits-1)+"|")
	}
	return append(out, rule)
}

func edge(row int) string {
	if row%2 == 1 {
		return "+"
	}
	return "|"
}

func label(f *Field) string {
	switch {
	case f.Label != "":
		return f.Label
	case f.reserved() && f.Bits >= 8:
		return "reserved"
	case f.reserved() && f.Bits >= 2:
		return "rsv"
	case f.reserved():
		return "0"
	}
	return f.Name
}

func center(s string, width int) string {
	if len(s) > width {
		s = s[:width]
	}
	left := (width - len(s)) / 2
	return strings.Repeat(" ", left) + s + strings.Repeat(" ", width-len(s)-left)
}
