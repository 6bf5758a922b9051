package labfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/metaroce/metaroce/daemon/impair"
)

// impairWords are the words of `lab impair` that take a value; a test compares them with daemon/impair.
var impairWords = []string{"loss", "burst", "delay", "jitter", "reorder", "dup", "corrupt", "rate", "queue", "ecn"}

var hostName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// parser carries the file name for messages. The first mistake ends the reading.
type parser struct{ file string }

func (p *parser) errf(n *yaml.Node, format string, args ...any) error {
	return &Error{File: p.file, Line: n.Line, Msg: fmt.Sprintf(format, args...)}
}

var yamlLine = regexp.MustCompile(`line (\d+): (.*)`)

// Parse reads a lab file. file is its name for messages and, without a name: key, for the lab.
func Parse(file string, data []byte) (*Lab, error) {
	p := &parser{file}
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, &Error{file, 1, "the file is empty; `nicemu lab init` writes one to edit"}
		}
		return nil, p.yamlError(err)
	}
	if err := dec.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		if err != nil {
			return nil, p.yamlError(err)
		}
		return nil, &Error{file, 1, "more than one YAML document; a lab is one"}
	}
	l := &Lab{Wire: "auto", Transport: "auto", Seed: 1}
	if err := p.lab(doc.Content[0], l); err != nil {
		return nil, err
	}
	return l, p.check(doc.Content[0], l)
}

// yamlError turns the decoder's message into ours.
func (p *parser) yamlError(err error) error {
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		line, _ := strconv.Atoi(m[1])
		return &Error{p.file, line, m[2]}
	}
	return &Error{p.file, 1, strings.TrimPrefix(err.Error(), "yaml: ")}
}

// keys maps a known key to what reads its value.
type keys map[string]func(*yaml.Node) error

func (p *parser) mapping(n *yaml.Node, what string, known keys) error {
	if n.Kind != yaml.MappingNode {
		return p.errf(n, "%s must be a list of `key: value`", what)
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		read, ok := known[k.Value]
		if !ok {
			return p.unknown(k, what, known)
		}
		if seen[k.Value] {
			return p.errf(k, "%q is given twice", k.Value)
		}
		seen[k.Value] = true
		if err := read(p.follow(v)); err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) follow(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

func (p *parser) unknown(k *yaml.Node, what string, known keys) error {
	var names []string
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	if near := Nearest(k.Value, names); near != "" {
		return p.errf(k, "unknown key %q in %s; did you mean %q?", k.Value, what, near)
	}
	return p.errf(k, "unknown key %q in %s; known: %s", k.Value, what, strings.Join(names, ", "))
}

func (p *parser) lab(n *yaml.Node, l *Lab) error {
	if n.Kind != yaml.MappingNode {
		return p.errf(n, "a lab is a list of `key: value`, beginning with `name:` and `hosts:`")
	}
	return p.mapping(n, "the lab", keys{
		"name":      func(v *yaml.Node) error { return p.name(v, &l.Name) },
		"hosts":     func(v *yaml.Node) error { return p.hosts(v, l) },
		"planes":    func(v *yaml.Node) error { return p.integer(v, "planes", 1, MaxPlanes, &l.Planes) },
		"plane":     func(v *yaml.Node) error { return p.plane(v, &l.Plane) },
		"wire":      func(v *yaml.Node) error { return p.oneOf(v, "wire", &l.Wire, "auto", "tap", "udp", "mem") },
		"transport": func(v *yaml.Node) error { return p.transport(v, &l.Transport) },
		"seed":      func(v *yaml.Node) error { return p.seed(v, &l.Seed) },
		"impair":    func(v *yaml.Node) error { return p.impairs(v, l) },
	})
}

func (p *parser) scalar(n *yaml.Node, what string) (string, error) {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		return "", p.errf(n, "%s must be a single value", what)
	}
	return n.Value, nil
}

func (p *parser) name(n *yaml.Node, to *string) error {
	s, err := p.scalar(n, "name")
	if err != nil {
		return err
	}
	if !hostName.MatchString(s) {
		return p.errf(n, "name %q: use small letters, digits and dashes, at most 32", s)
	}
	*to = s
	return nil
}

func (p *parser) integer(n *yaml.Node, what string, lo, hi int, to *int) error {
	s, err := p.scalar(n, what)
	if err != nil {
		return err
	}
	v, err := strconv.Atoi(s)
	if err != nil || v < lo || v > hi {
		return p.errf(n, "%s: %q is not a number from %d to %d", what, s, lo, hi)
	}
	*to = v
	return nil
}

func (p *parser) seed(n *yaml.Node, to *uint64) error {
	s, err := p.scalar(n, "seed")
	if err != nil {
		return err
	}
	v, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		return p.errf(n, "seed: %q is not a whole number", s)
	}
	*to = v
	return nil
}

func (p *parser) oneOf(n *yaml.Node, what string, to *string, allowed ...string) error {
	s, err := p.scalar(n, what)
	if err != nil {
		return err
	}
	if !slices.Contains(allowed, s) {
		if near := Nearest(s, allowed); near != "" {
			return p.errf(n, "%s: unknown %q; did you mean %q?", what, s, near)
		}
		return p.errf(n, "%s: unknown %q; one of %s", what, s, strings.Join(allowed, ", "))
	}
	*to = s
	return nil
}

func (p *parser) transport(n *yaml.Node, to *string) error {
	return p.oneOf(n, "transport", to, "metaroce", "rocev2", "auto")
}

func (p *parser) hosts(n *yaml.Node, l *Lab) error {
	if n.Kind != yaml.MappingNode || len(n.Content) == 0 {
		return p.errf(n, "hosts must be a list such as `a: {addr: 10.0.0.1/24}`")
	}
	owner := map[netip.Addr]string{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], p.follow(n.Content[i+1])
		if !hostName.MatchString(k.Value) {
			return p.errf(k, "host name %q: use small letters, digits and dashes, at most 32", k.Value)
		}
		if l.Host(k.Value) != nil {
			return p.errf(k, "host %q is given twice", k.Value)
		}
		h := Host{Name: k.Value}
		if err := p.host(v, &h); err != nil {
			return err
		}
		for _, nic := range h.NICs {
			for _, a := range nic.Addrs {
				if who := owner[a.Addr()]; who != "" {
					return p.errf(k, "%s has the address %s already; host %s cannot have it", who, a.Addr(), h.Name)
				}
				owner[a.Addr()] = h.Name + "/" + nic.Name
			}
		}
		l.Hosts = append(l.Hosts, h)
	}
	if len(l.Hosts) > MaxHosts {
		return p.errf(n, "%d hosts; at most %d", len(l.Hosts), MaxHosts)
	}
	return nil
}

func (p *parser) host(n *yaml.Node, h *Host) error {
	var one NIC
	err := p.mapping(n, "host "+h.Name, keys{
		"addr":      func(v *yaml.Node) error { return p.addrs(v, &one.Addrs) },
		"transport": func(v *yaml.Node) error { return p.transport(v, &h.Transport) },
		"nics":      func(v *yaml.Node) error { return p.nics(v, h) },
	})
	if err != nil {
		return err
	}
	switch {
	case one.Addrs != nil && h.NICs != nil:
		return p.errf(n, "host %s: give addr: or nics:, not both", h.Name)
	case one.Addrs != nil:
		one.Name = "mr0"
		h.NICs = []NIC{one}
	case h.NICs == nil:
		return p.errf(n, "host %s has no address; give addr: 10.0.0.1/24", h.Name)
	}
	return nil
}

var nicName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,13}$`)

func (p *parser) nics(n *yaml.Node, h *Host) error {
	if n.Kind != yaml.MappingNode || len(n.Content) == 0 {
		return p.errf(n, "nics must be a list such as `mr0: {addr: 10.0.0.1/24}`")
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], p.follow(n.Content[i+1])
		if !nicName.MatchString(k.Value) {
			return p.errf(k, "NIC name %q: use a short name such as mr0", k.Value)
		}
		nic := NIC{Name: k.Value}
		if err := p.mapping(v, "nic "+k.Value, keys{"addr": func(v *yaml.Node) error { return p.addrs(v, &nic.Addrs) }}); err != nil {
			return err
		}
		if nic.Addrs == nil {
			return p.errf(k, "nic %s of host %s has no addr:", k.Value, h.Name)
		}
		h.NICs = append(h.NICs, nic)
	}
	return nil
}

func (p *parser) addrs(n *yaml.Node, to *[]netip.Prefix) error {
	list := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		list = n.Content
	}
	if len(list) == 0 {
		return p.errf(n, "addr is empty")
	}
	for _, a := range list {
		s, err := p.scalar(a, "addr")
		if err != nil {
			return err
		}
		pre, err := netip.ParsePrefix(s)
		if err != nil {
			return p.errf(a, "addr: %q is not an address with a prefix length such as 10.0.0.1/24", s)
		}
		if a4 := pre.Addr(); !a4.Is4() && !a4.Is6() || a4.IsUnspecified() || a4.IsMulticast() || a4.IsLoopback() {
			return p.errf(a, "addr: %s cannot be the address of a NIC", s)
		}
		*to = append(*to, pre)
	}
	return nil
}

func (p *parser) value(n *yaml.Node, what string, read func(string) error) error {
	s, err := p.scalar(n, what)
	if err != nil {
		return err
	}
	if err := read(s); err != nil {
		return p.errf(n, "%s: %v", what, err)
	}
	return nil
}

func into[T any](to *T, read func(string) (T, error)) func(string) error {
	return func(s string) (err error) {
		*to, err = read(s)
		return err
	}
}

func (p *parser) plane(n *yaml.Node, pl *Plane) error {
	err := p.mapping(n, "plane", keys{
		"rate":  func(v *yaml.Node) error { return p.value(v, "rate", into(&pl.RateBps, impair.ParseRate)) },
		"delay": func(v *yaml.Node) error { return p.value(v, "delay", into(&pl.Delay, duration)) },
		"mtu":   func(v *yaml.Node) error { return p.integer(v, "mtu", MinMTU, MaxMTU, &pl.MTU) },
		"queue": func(v *yaml.Node) error { return p.value(v, "queue", into(&pl.QueueBytes, impair.ParseSize)) },
		"noise": func(v *yaml.Node) error {
			pl.Noise = new(time.Duration)
			return p.value(v, "noise", into(pl.Noise, noise))
		},
		"ecn": func(v *yaml.Node) error {
			err := p.mapping(v, "ecn", keys{
				"min": func(v *yaml.Node) error { return p.value(v, "min", into(&pl.ECNMin, impair.ParseSize)) },
				"max": func(v *yaml.Node) error { return p.value(v, "max", into(&pl.ECNMax, impair.ParseSize)) },
			})
			if err == nil && (pl.ECNMax == 0 || pl.ECNMin > pl.ECNMax) {
				err = p.errf(v, "ecn: min and max are both needed, min not above max")
			}
			return err
		},
	})
	if err != nil {
		return err
	}
	if _, err := impair.Parse(pl.Words()); err != nil {
		return p.errf(n, "plane: %s", trim(err))
	}
	return nil
}

func duration(s string) (time.Duration, error) {
	d, err := impair.ParseDuration(s)
	return time.Duration(d), err
}

// noise reads a wire's timing noise; "0" needs no unit.
func noise(s string) (time.Duration, error) {
	if s == "0" {
		return 0, nil
	}
	d, err := duration(s)
	if err == nil && d > MaxNoise {
		return 0, fmt.Errorf("%s is longer than %v", s, MaxNoise)
	}
	return d, err
}

// trim takes the package's name off an error of daemon/impair: here the key says it.
func trim(err error) string { return strings.TrimPrefix(err.Error(), "impair: ") }

func (p *parser) impairs(n *yaml.Node, l *Lab) error {
	if n.Kind != yaml.SequenceNode {
		return p.errf(n, "impair must be a list such as `- {planes: [0, 1], loss: 1%%}`")
	}
	for _, e := range n.Content {
		im := Impair{Line: e.Line}
		if err := p.impair(p.follow(e), &im); err != nil {
			return err
		}
		l.Impair = append(l.Impair, im)
	}
	return nil
}

func (p *parser) impair(n *yaml.Node, im *Impair) error {
	known := keys{
		"planes": func(v *yaml.Node) error { return p.planeList(v, &im.Planes) },
		"hosts":  func(v *yaml.Node) error { return p.words(v, "hosts", &im.Hosts) },
		"at":     func(v *yaml.Node) error { return p.value(v, "at", into(&im.At, duration)) },
		"for":    func(v *yaml.Node) error { return p.value(v, "for", into(&im.For, duration)) },
		"down":   func(v *yaml.Node) error { return p.down(v, im) },
	}
	for _, w := range impairWords {
		for _, w := range []string{w, "rx." + w} {
			known[w] = func(v *yaml.Node) error {
				s, err := p.scalar(v, w)
				if err == nil {
					im.Words = append(im.Words, w+"="+s)
				}
				return err
			}
		}
	}
	if err := p.mapping(n, "impair", known); err != nil {
		return err
	}
	if len(im.Words) == 0 {
		return p.errf(n, "this impairment does nothing; add one of %s, down", strings.Join(impairWords, ", "))
	}
	if _, err := impair.Parse(im.Words); err != nil {
		return p.errf(n, "%s", trim(err))
	}
	return nil
}

func (p *parser) down(n *yaml.Node, im *Impair) error {
	var on bool
	if err := n.Decode(&on); err != nil || n.Kind != yaml.ScalarNode {
		return p.errf(n, "down: %q is neither true nor false", n.Value)
	}
	if on {
		im.Words = append(im.Words, "down")
	} else {
		im.Words = append(im.Words, "up")
	}
	return nil
}

func (p *parser) words(n *yaml.Node, what string, to *[]string) error {
	list := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		list = n.Content
	}
	for _, e := range list {
		s, err := p.scalar(e, what)
		if err != nil {
			return err
		}
		*to = append(*to, s)
	}
	return nil
}

func (p *parser) planeList(n *yaml.Node, to *[]int) error {
	list := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		list = n.Content
	}
	for _, e := range list {
		var v int
		if err := p.integer(e, "planes", 0, MaxPlanes-1, &v); err != nil {
			return err
		}
		*to = append(*to, v)
	}
	return nil
}

// check looks at the lab as a whole.
func (p *parser) check(n *yaml.Node, l *Lab) error {
	if l.Name == "" {
		base := strings.ToLower(strings.TrimSuffix(filepath.Base(p.file), filepath.Ext(p.file)))
		if !hostName.MatchString(base) {
			return p.errf(n, "the lab has no name; add `name: my-lab`")
		}
		l.Name = base
	}
	if len(l.Hosts) == 0 {
		return p.errf(n, "the lab has no hosts; add `hosts: {a: {addr: 10.0.0.1/24}, b: {addr: 10.0.0.2/24}}`")
	}
	if l.Planes == 0 {
		l.Planes = 1
	}
	for _, im := range l.Impair {
		at := &yaml.Node{Line: im.Line}
		for _, pl := range im.Planes {
			if pl >= l.Planes {
				return p.errf(at, "plane %d: the lab has planes 0 to %d", pl, l.Planes-1)
			}
		}
		for _, h := range im.Hosts {
			if l.Host(h) != nil {
				continue
			}
			if near := Nearest(h, l.HostNames()); near != "" {
				return p.errf(at, "no host %q; did you mean %q?", h, near)
			}
			return p.errf(at, "no host %q; hosts: %s", h, strings.Join(l.HostNames(), ", "))
		}
	}
	return nil
}
