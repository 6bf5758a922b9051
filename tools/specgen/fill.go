package main

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A chapter holds places to fill: a line "<!-- generated KIND NAME -->", and "<!-- end generated -->" behind it.
//
//	bits NAME     drawing and field table of a header
//	enum NAME     table of a registry
//	registry NAME the same with what is free
//	opcodes       opcode table with headers
//	constants     numbers of the protocol
var placeRE = regexp.MustCompile(`(?ms)^<!-- generated (.*?) -->\n(.*?)^<!-- end generated -->$`)

var openRE = regexp.MustCompile(`(?m)^<!-- generated `)

func fillChapter(f *Formats, text []byte) ([]byte, error) {
	var firstErr error
	if open, whole := len(openRE.FindAll(text, -1)), len(placeRE.FindAll(text, -1)); open != whole {
		return nil, fmt.Errorf("%d places begin, %d end", open, whole)
	}
	out := placeRE.ReplaceAllFunc(text, func(place []byte) []byte {
		what := string(placeRE.FindSubmatch(place)[1])
		body, err := chapterPart(f, what)
		if err != nil && firstErr == nil {
			firstErr = err
		}
		return []byte("<!-- generated " + what + " -->\n" + body + "<!-- end generated -->")
	})
	return out, firstErr
}

func chapterPart(f *Formats, what string) (string, error) {
	kind, name, _ := strings.Cut(what, " ")
	var b strings.Builder
	switch kind {
	case "bits":
		h := f.header(name)
		if h == nil {
			return "", fmt.Errorf("no header %q", name)
		}
		bitsPart(&b, h)
	case "enum":
		e := f.enum(name)
		if e == nil {
			return "", fmt.Errorf("no registry %q", name)
		}
		b.WriteString("| value | name | meaning |\n|---|---|---|\n")
		for _, v := range e.Values {
			must := ""
			if v.Must {
				must = " (sent with M set)"
			}
			fmt.Fprintf(&b, "| %#02x | %s | %s%s |\n", v.Value, v.Wire, v.Doc, must)
		}
	case "registry":
		e := f.enum(name)
		if e == nil || len(e.Range) == 0 {
			return "", fmt.Errorf("no registry %q with a range", name)
		}
		registryPart(&b, e)
	case "opcodes":
		b.WriteString("| value | name | counts as | headers behind MPH | payload | meaning |\n|---|---|---|---|---|---|\n")
		for _, v := range f.Opcodes.Values {
			fmt.Fprintf(&b, "| 0x%02X | %s | %s | %s | %s | %s |\n", v.Value, v.Wire, dash(v.Space), dash(strings.Join(v.Headers, ", ")), yes(v.Payload), v.Doc)
		}
	case "constants":
		b.WriteString("| name | value | meaning |\n|---|---|---|\n")
		fmt.Fprintf(&b, "| Version | %d | version of the protocol that this text describes |\n| UDPPort | %d | UDP destination port |\n", f.Version, f.UDPPort)
		for _, c := range f.Constants {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", c.Name, number(c.Value), c.Doc)
		}
	default:
		return "", fmt.Errorf("cannot generate %q", what)
	}
	return b.String(), nil
}

// registryPart lists every value of a registry: given out, free, or for experiments.
func registryPart(b *strings.Builder, e *Enum) {
	b.WriteString("| value | name | meaning |\n|---|---|---|\n")
	row := func(lo, hi int, name, doc string) {
		switch {
		case lo > hi:
		case lo == hi:
			fmt.Fprintf(b, "| 0x%02X | %s | %s |\n", lo, name, doc)
		default:
			fmt.Fprintf(b, "| 0x%02X–0x%02X | %s | %s |\n", lo, hi, name, doc)
		}
	}
	if e.Flags {
		for bit := e.Range[0]; bit <= e.Range[1]; bit *= 2 {
			name, doc := "", "free"
			if e.within(e.Trial, bit) {
				doc = "for experiments"
			}
			for _, v := range e.Values {
				if v.Value == bit {
					name, doc = v.Wire, v.Doc
				}
			}
			row(bit, bit, name, doc)
		}
		return
	}
	values := slices.Clone(e.Values)
	slices.SortFunc(values, func(x, y Value) int { return x.Value - y.Value })
	next, end := e.Range[0], e.Range[1]
	free := func(to int) {
		if len(e.Trial) > 0 && next <= e.Trial[0] && to >= e.Trial[1] {
			row(next, e.Trial[0]-1, "", "free")
			row(e.Trial[0], e.Trial[1], "", "for experiments")
			next = e.Trial[1] + 1
		}
		row(next, to, "", "free")
	}
	for _, v := range values {
		free(v.Value - 1)
		row(v.Value, v.Value, v.Wire, v.Doc)
		next = v.Value + 1
	}
	free(end)
}

func bitsPart(b *strings.Builder, h *Header) {
	b.WriteString("```\n")
	for _, l := range draw(h) {
		b.WriteString(strings.TrimRight(l, " ") + "\n")
	}
	b.WriteString("```\n\n| field | at byte.bit | bits | meaning |\n|---|---|---|---|\n")
	for i := range h.Fields {
		fl := &h.Fields[i]
		name, doc := fl.Name, fl.Doc
		if fl.reserved() {
			name, doc = "reserved", "0"
		}
		if doc == "" {
			doc = fl.Label
		}
		at := fmt.Sprint(fl.off / 8)
		if fl.off%8 != 0 {
			at += fmt.Sprintf(".%d", fl.off%8)
		}
		fmt.Fprintf(b, "| %s | %s | %d | %s |\n", name, at, fl.Bits, doc)
	}
	if t := h.Tail; t != nil {
		fmt.Fprintf(b, "| %s | %d | 0–%d | %s |\n", t.Name, h.len(), 32*t.Words, t.Doc)
	}
}

func dash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// Doc comments hold drawings as code blocks that begin with a line "bits NAME".
var commentRE = regexp.MustCompile(`(?m)^//\tbits (\w+)\n(?://\t.*\n)*`)

func fillComments(f *Formats, text []byte) ([]byte, error) {
	var firstErr error
	out := commentRE.ReplaceAllFunc(text, func(place []byte) []byte {
		name := string(commentRE.FindSubmatch(place)[1])
		h := f.header(name)
		if h == nil {
			if firstErr == nil {
				firstErr = fmt.Errorf("no header %q", name)
			}
			return place
		}
		var b bytes.Buffer
		fmt.Fprintf(&b, "//\tbits %s\n", name)
		for _, l := range draw(h) {
			fmt.Fprintf(&b, "//\t%s\n", strings.TrimRight(l, " "))
		}
		return b.Bytes()
	})
	return out, firstErr
}
