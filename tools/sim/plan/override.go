package plan

import (
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

var pathStep = regexp.MustCompile(`^([A-Za-z0-9_-]+)((?:\[[0-9]+\])*)$`)

// override puts value where path says. Keys that are not there are made: the parser finds those that nobody knows.
func (p *parser) override(doc *yaml.Node, path, text string) error {
	tag := path + "=" + text
	bad := func(format string, args ...any) error {
		n := &yaml.Node{}
		p.over[n] = tag
		return p.mistake(n, format, args...)
	}
	var parsed yaml.Node
	if err := yaml.Unmarshal([]byte(text), &parsed); err != nil {
		return bad("the value is not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	var value *yaml.Node // nil: take the key away
	if len(parsed.Content) > 0 && parsed.Content[0].Tag != "!!null" {
		value = parsed.Content[0]
		p.mark(value, tag)
	}
	at := doc
	steps := strings.Split(path, ".")
	for i, step := range steps {
		m := pathStep.FindStringSubmatch(step)
		if m == nil {
			return bad("%q is not a path such as topology.hosts or events[0].loss", path)
		}
		if at.Kind != yaml.MappingNode {
			return bad("%s holds no keys", strings.Join(steps[:i], "."))
		}
		var index []int
		for _, s := range strings.FieldsFunc(m[2], func(r rune) bool { return r == '[' || r == ']' }) {
			j, err := strconv.Atoi(s)
			if err != nil {
				return bad("[%s] is not an index", s)
			}
			index = append(index, j)
		}
		last := i == len(steps)-1
		if last && len(index) == 0 {
			if value == nil && p.key(at, m[1]) == nil {
				return bad("there is no %s to take away", path)
			}
			p.setKey(at, m[1], value, tag)
			return nil
		}
		next := p.key(at, m[1])
		if next == nil {
			if len(index) > 0 {
				return bad("there is no list %s in the plan", strings.Join(steps[:i+1], "."))
			}
			next = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
			p.setKey(at, m[1], next, tag)
		}
		for j, x := range index {
			if next.Kind != yaml.SequenceNode || x >= len(next.Content) {
				return bad("%s has %d entries", m[1], len(next.Content))
			}
			if last && j == len(index)-1 {
				if value == nil {
					return bad("an entry of a list cannot be taken away")
				}
				next.Content[x] = value
				return nil
			}
			next.Content[x] = follow(next.Content[x])
			next = next.Content[x]
		}
		at = next
	}
	return nil
}

// mark makes mistakes in n name the override.
func (p *parser) mark(n *yaml.Node, tag string) {
	p.over[n] = tag
	for _, c := range n.Content {
		p.mark(c, tag)
	}
}

func (p *parser) key(n *yaml.Node, name string) *yaml.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return follow(n.Content[i+1])
		}
	}
	return nil
}

// setKey replaces, adds or, with nil, takes away a key's value.
func (p *parser) setKey(n *yaml.Node, name string, value *yaml.Node, tag string) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value != name {
			continue
		}
		if value == nil {
			n.Content = append(n.Content[:i:i], n.Content[i+2:]...)
			return
		}
		n.Content[i+1] = value
		return
	}
	k := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: name}
	p.over[k] = tag
	if p.over[value] == "" {
		p.mark(value, tag)
	}
	n.Content = append(n.Content, k, value)
}
