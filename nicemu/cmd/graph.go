package cmd

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/daemon/serve"
	"github.com/metaroce/metaroce/nicemu/lab"
	"github.com/metaroce/metaroce/nicemu/labfile"
)

// picture is what a graph is drawn from: a running lab or a file.
type picture struct {
	name   string
	planes int
	link   string
	hosts  []string   // name
	nics   [][]string // of each host, with address
	impair []string
}

func (e *env) labGraph(c *cli.Context) error {
	p, err := findPicture(named1(c))
	if err != nil {
		return err
	}
	if c.Bool("dot") {
		fmt.Fprint(e.out, p.dot())
		return nil
	}
	fmt.Fprint(e.out, p.text())
	return nil
}

func findPicture(name string) (*picture, error) {
	if _, err := os.Stat(name); name == "" || err != nil {
		s, err := lab.Find(lab.KindLab, name)
		if err == nil {
			p := pictureOfState(s)
			if states, err := impairLab(s, serve.ImpairArgs{}); err == nil {
				p.impair = describeStates(states)
			}
			return p, nil
		}
		if _, ok := labfile.FindBuiltin(name); !ok {
			if name != "" && fail.Code(err) != fail.Usage {
				return nil, fail.Usagef("%q is no lab that is up, no file and no built-in lab (%s)", name, strings.Join(labfile.BuiltinNames(), ", "))
			}
			return nil, err
		}
	}
	l, err := readLab(name)
	if err != nil {
		return nil, err
	}
	p := &picture{name: l.Name, planes: l.Planes, link: strings.Join(l.Plane.Words(), " ")}
	for _, h := range l.Hosts {
		p.hosts = append(p.hosts, h.Name)
		var nics []string
		for _, n := range h.NICs {
			nics = append(nics, fmt.Sprintf("%s %v", n.Name, n.Addrs[0].Addr()))
		}
		p.nics = append(p.nics, nics)
	}
	for _, im := range l.Impair {
		p.impair = append(p.impair, describeImpair(im))
	}
	return p, nil
}

func pictureOfState(s *lab.State) *picture {
	p := &picture{name: s.Name, planes: s.Planes, link: strings.TrimSpace("over " + s.Wire + " " + strings.Join(s.Plane.Words(), " "))}
	for _, h := range s.Hosts {
		p.hosts = append(p.hosts, h.Name)
		var nics []string
		for _, n := range h.NICs {
			nics = append(nics, fmt.Sprintf("%s %v", n.Name, n.Addrs[0].Addr()))
		}
		p.nics = append(p.nics, nics)
	}
	return p
}

// describeStates says what is set on a running lab: once where all NICs have the same on a plane.
func describeStates(states []serve.ImpairState) []string {
	words := map[int]map[string]bool{}
	for _, st := range states {
		if words[st.Plane] == nil {
			words[st.Plane] = map[string]bool{}
		}
		words[st.Plane][st.Words] = true
	}
	var out []string
	for _, st := range states {
		line := fmt.Sprintf("plane %d of %s: %s", st.Plane, st.NIC, st.Words)
		if len(words[st.Plane]) == 1 {
			line = fmt.Sprintf("plane %d: %s", st.Plane, st.Words)
		}
		if st.Words != "clear" && !slices.Contains(out, line) {
			out = append(out, line)
		}
	}
	return out
}

func describeImpair(im labfile.Impair) string {
	where := "all planes"
	if len(im.Planes) > 0 {
		where = "plane " + strings.Trim(strings.ReplaceAll(fmt.Sprint(im.Planes), " ", ", "), "[]")
	}
	if len(im.Hosts) > 0 {
		where += " of " + strings.Join(im.Hosts, ", ")
	}
	return where + ": " + im.String()
}

// text draws hosts above, planes below; more than six hosts are folded into one.
func (p *picture) text() string {
	hosts, nics := p.hosts, p.nics
	if len(hosts) > 6 {
		hosts = append(append([]string{}, hosts[:4]...), fmt.Sprintf("… %d more", len(hosts)-5), hosts[len(hosts)-1])
		nics = append(append([][]string{}, nics[:4]...), []string{"", ""}, nics[len(nics)-1])
	}
	var cols []int
	rows := 0
	for i, h := range hosts {
		w := len([]rune(h))
		for _, n := range nics[i] {
			w = max(w, len(n))
		}
		cols = append(cols, max(w, 2*p.planes-1)+2)
		rows = max(rows, len(nics[i]))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", strings.TrimSpace(fmt.Sprintf("%s: %s, %s %s", p.name, count(len(p.hosts), "host"), count(p.planes, "plane"), p.link)))
	line := func(cell func(i, w int) string) {
		for i, w := range cols {
			b.WriteString("  " + cell(i, w))
		}
		b.WriteString("\n")
	}
	center := func(s string, w int) string {
		n := len([]rune(s))
		left := max(0, (w-n)/2)
		return strings.Repeat(" ", left) + s + strings.Repeat(" ", max(0, w-n-left))
	}
	line(func(_, w int) string { return "┌" + strings.Repeat("─", w) + "┐" })
	line(func(i, w int) string { return "│" + center(hosts[i], w) + "│" })
	for r := range rows {
		line(func(i, w int) string {
			s := ""
			if r < len(nics[i]) {
				s = nics[i][r]
			}
			return "│" + center(s, w) + "│"
		})
	}
	line(func(_, w int) string {
		return "└" + strings.ReplaceAll(center(strings.TrimSpace(strings.Repeat("┬ ", p.planes)), w), " ", "─") + "┘"
	})
	for plane := range p.planes {
		for _, w := range cols {
			b.WriteString("  " + " " + center(drops(p.planes, plane), w) + " ")
		}
		b.WriteString("\n")
		b.WriteString("  " + rail(cols, p.planes, plane) + fmt.Sprintf("  plane %d\n", plane))
	}
	for _, im := range p.impair {
		b.WriteString("\n" + im)
	}
	if len(p.impair) > 0 {
		b.WriteString("\n")
	}
	var lines []string
	for line := range strings.Lines(b.String()) {
		lines = append(lines, strings.TrimRight(line, " \n"))
	}
	return strings.Join(lines, "\n") + "\n"
}

// drops are the vertical lines that still go down at plane n.
func drops(planes, n int) string {
	var s []string
	for i := range planes {
		if i >= n {
			s = append(s, "│")
		} else {
			s = append(s, " ")
		}
	}
	return strings.Join(s, " ")
}

// rail is the line of one plane: it meets its own line of each host and crosses those of later planes.
func rail(cols []int, planes, n int) string {
	var b strings.Builder
	for _, w := range cols {
		cell := []rune(strings.Repeat("═", w+2))
		left := 1 + (w-(2*planes-1))/2
		for i := n; i < planes; i++ {
			if i == n {
				cell[left+2*i] = '╧'
			} else {
				cell[left+2*i] = '╪'
			}
		}
		b.WriteString(string(cell) + "══")
	}
	return strings.TrimSuffix(b.String(), "══")
}

func (p *picture) dot() string {
	var b strings.Builder
	fmt.Fprintf(&b, "graph %q {\n  layout=dot; rankdir=TB;\n  node [shape=box];\n", p.name)
	for i, h := range p.hosts {
		fmt.Fprintf(&b, "  %q [label=%q];\n", h, h+"\n"+strings.Join(p.nics[i], "\n"))
	}
	for n := range p.planes {
		fmt.Fprintf(&b, "  plane%d [shape=ellipse];\n", n)
		for _, h := range p.hosts {
			fmt.Fprintf(&b, "  %q -- plane%d;\n", h, n)
		}
	}
	b.WriteString("}\n")
	return b.String()
}
