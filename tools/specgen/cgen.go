package main

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
)

// cHeader returns spec/wire/formats.h.
func cHeader(f *Formats) []byte {
	var b bytes.Buffer
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("/* SPDX-License-Identifier: Apache-2.0 */\n/* %s */\n#ifndef MRW_FORMATS_H\n#define MRW_FORMATS_H\n", generatedBy)
	p("/*\n * Offsets (OFF) are in bytes from the header's begin. Fields that are shorter than a byte, or do not begin on one, have\n" +
		" * a mask (MASK) and a shift (SHIFT) within the big-endian number of whole bytes at that offset.\n */\n")
	p("#define MRW_VERSION %d\n#define MRW_UDP_PORT %d", f.Version, f.UDPPort)
	for _, c := range f.Constants {
		p("#define MRW_%s %d /* %s */", snake(c.Name), c.Value, c.Doc)
	}
	for i := range f.Headers {
		h := &f.Headers[i]
		n := snake(h.Name)
		p("\n/* %s", h.Title)
		for _, l := range draw(h) {
			p(" * %s", strings.TrimRight(l, " "))
		}
		p(" */\n#define MRW_%s_LEN %d", n, h.len())
		for j := range h.Fields {
			fl := &h.Fields[j]
			if fl.reserved() {
				continue
			}
			p("#define MRW_%s_%s_OFF %d", n, snake(fl.Name), fl.off/8)
			p("#define MRW_%s_%s_BITS %d", n, snake(fl.Name), fl.Bits)
			if fl.Bits < 8 || fl.off%8 != 0 {
				width := 8 * ((fl.off%8 + fl.Bits + 7) / 8)
				shift := width - fl.off%8 - fl.Bits
				p("#define MRW_%s_%s_MASK %#x", n, snake(fl.Name), (1<<fl.Bits-1)<<shift)
				p("#define MRW_%s_%s_SHIFT %d", n, snake(fl.Name), shift)
			}
		}
		if t := h.Tail; t != nil {
			p("#define MRW_%s_%s_OFF %d\n#define MRW_%s_%s_WORDS %d", n, snake(t.Name), h.len(), n, snake(t.Name), t.Words)
		}
	}
	for _, e := range f.allEnums() {
		p("\n/* %s: %s */\nenum mrw_%s {", e.Name, e.Doc, strings.ToLower(snake(e.Name)))
		for _, v := range e.Values {
			p("\tMRW_%s_%s = %#x, /* %s */", snake(e.Prefix), v.Wire, v.Value, v.Doc)
		}
		p("};")
	}
	p("\n#endif")
	return b.Bytes()
}

// snake turns a name like ReadNo, NICID or AckH into READ_NO, NICID, ACK_H.
func snake(s string) string {
	var b strings.Builder
	for i, r := range s {
		if i > 0 && unicode.IsUpper(r) && !unicode.IsUpper(rune(s[i-1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToUpper(r))
	}
	return b.String()
}
