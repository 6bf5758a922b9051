package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"go.yaml.in/yaml/v3"
)

// Formats is spec/wire/formats.yaml.
type Formats struct {
	Version   int        `yaml:"version"`
	UDPPort   int        `yaml:"udp_port"`
	Constants []Constant `yaml:"constants"`
	Headers   []Header   `yaml:"headers"`
	RoCE      []Header   `yaml:"rocev2"` // of plain RoCEv2: drawn, no constants are made of them
	Opcodes   Enum       `yaml:"opcodes"`
	Enums     []Enum     `yaml:"enums"`
}

// Constant is a number of the protocol.
type Constant struct {
	Name  string `yaml:"name"`
	Value int    `yaml:"value"`
	Doc   string `yaml:"doc"`
}

// Header is a run of fields.
type Header struct {
	Name   string  `yaml:"name"`
	Title  string  `yaml:"title"`
	Doc    string  `yaml:"doc"`
	Fields []Field `yaml:"fields"`
	Tail   *Tail   `yaml:"tail"`
}

// Field is a field of a header; "-" is reserved.
type Field struct {
	Name  string `yaml:"name"`
	Bits  int    `yaml:"bits"`
	Label string `yaml:"label"`
	Doc   string `yaml:"doc"`
	off   int    // bits from the header's begin
}

// Tail is a run of words whose number varies.
type Tail struct {
	Name  string `yaml:"name"`
	Words int    `yaml:"words"` // at most
	Doc   string `yaml:"doc"`
}

// Enum is a registry.
type Enum struct {
	Name   string  `yaml:"name"`
	Prefix string  `yaml:"prefix"`
	Doc    string  `yaml:"doc"`
	Flags  bool    `yaml:"flags"`
	Range  []int   `yaml:"range"`       // first and last value that can be given out
	Trial  []int   `yaml:"experiments"` // first and last value that is never given out
	Values []Value `yaml:"values"`
}

// Value is an entry of a registry.
type Value struct {
	Name    string   `yaml:"name"`
	Wire    string   `yaml:"wire"` // its name in the spec and in C
	Value   int      `yaml:"value"`
	Doc     string   `yaml:"doc"`
	Must    bool     `yaml:"must"`    // HelloTLV: sent with the must-understand bit
	Space   string   `yaml:"space"`   // Opcode: the PSN space it counts in
	Headers []string `yaml:"headers"` // Opcode: extension headers
	Payload bool     `yaml:"payload"` // Opcode: bytes may follow
}

func (h *Header) bits() (n int) {
	for _, f := range h.Fields {
		n += f.Bits
	}
	return n
}

func (h *Header) len() int { return h.bits() / 8 }

func (f *Field) reserved() bool { return f.Name == "-" }

func (f *Formats) header(name string) *Header {
	for _, list := range [][]Header{f.Headers, f.RoCE} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

func (f *Formats) enum(name string) *Enum {
	for i := range f.Enums {
		if f.Enums[i].Name == name {
			return &f.Enums[i]
		}
	}
	if f.Opcodes.Name == name {
		return &f.Opcodes
	}
	return nil
}

func (f *Formats) allEnums() []*Enum {
	all := []*Enum{&f.Opcodes}
	for i := range f.Enums {
		all = append(all, &f.Enums[i])
	}
	return all
}

// within reports whether a value lies in a range; in one that is left out there is nothing.
func (e *Enum) within(r []int, v int) bool { return len(r) > 0 && v >= r[0] && v <= r[1] }

func loadFormats(path string) (*Formats, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f, err := parseFormats(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

func parseFormats(data []byte) (*Formats, error) {
	var f Formats
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&f); err != nil {
		return nil, err
	}
	return &f, f.check()
}

// check finds what a typing error would leave behind, and sets the offsets.
func (f *Formats) check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	seen := map[string]bool{}
	once := func(name string) {
		if seen[name] {
			bad("%s: defined twice", name)
		}
		seen[name] = true
	}
	headers := make([]*Header, 0, len(f.Headers)+len(f.RoCE))
	for i := range f.Headers {
		headers = append(headers, &f.Headers[i])
	}
	for i := range f.RoCE {
		headers = append(headers, &f.RoCE[i])
	}
	for _, h := range headers {
		once("header " + h.Name)
		off := 0
		for j := range h.Fields {
			fl := &h.Fields[j]
			fl.off = off
			off += fl.Bits
			if !fl.reserved() {
				once(h.Name + "." + fl.Name)
			}
			switch {
			case fl.Bits < 1:
				bad("%s.%s: no width", h.Name, fl.Name)
			case fl.Bits < 8 && fl.off/8 != (fl.off+fl.Bits-1)/8:
				bad("%s.%s: crosses a byte", h.Name, fl.Name)
			case fl.Bits >= 8 && fl.off%8 != 0 && !(fl.Bits < 16 && fl.off%8+fl.Bits == 16), fl.Bits >= 8 && (fl.off+fl.Bits)%8 != 0:
				bad("%s.%s: does not end on a byte", h.Name, fl.Name)
			case fl.Bits >= 32 && (fl.off%32 != 0 || fl.Bits%32 != 0):
				bad("%s.%s: not in whole words", h.Name, fl.Name)
			}
		}
		if off%32 != 0 {
			bad("%s: %d bits are not a multiple of 32", h.Name, off)
		}
	}
	for _, e := range f.allEnums() {
		f.checkEnum(e, once, bad)
	}
	return errors.Join(errs...)
}

// checkEnum does the same for a registry.
func (f *Formats) checkEnum(e *Enum, once func(string), bad func(string, ...any)) {
	once("enum " + e.Name)
	if len(e.Range) != 0 && len(e.Range) != 2 || len(e.Trial) != 0 && len(e.Trial) != 2 {
		bad("%s: a range has two ends", e.Name)
		e.Range, e.Trial = nil, nil
	}
	values := map[int]string{}
	for _, v := range e.Values {
		once(e.Prefix + v.Name)
		if old, dup := values[v.Value]; dup {
			bad("%s: %s and %s are both %#x", e.Name, old, v.Name, v.Value)
		}
		values[v.Value] = v.Name
		if v.Value < 0 || v.Value > 255 {
			bad("%s.%s: %#x does not fit 8 bits", e.Name, v.Name, v.Value)
		}
		if e.within(e.Trial, v.Value) || len(e.Range) > 0 && !e.within(e.Range, v.Value) {
			bad("%s.%s: %#x is not to be given out", e.Name, v.Name, v.Value)
		}
		if e.Flags && v.Value&(v.Value-1) != 0 {
			bad("%s.%s: %#x is not one bit", e.Name, v.Name, v.Value)
		}
		for _, h := range v.Headers {
			if f.header(h) == nil {
				bad("%s.%s: no header %q", e.Name, v.Name, h)
			}
		}
	}
}
