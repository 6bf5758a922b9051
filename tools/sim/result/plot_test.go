package result

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"image/png"
	"io"
	"math"
	"strings"
	"testing"
)

// texts draws a figure both ways and returns the texts of its SVG, which must be well-formed XML.
func texts(t *testing.T, f *Figure) string {
	t.Helper()
	var svg, pic bytes.Buffer
	if err := errors.Join(f.WriteSVG(&svg), f.WritePNG(&pic)); err != nil {
		t.Fatal(err)
	}
	if _, err := png.Decode(&pic); err != nil {
		t.Errorf("%s: %v", f.Name, err)
	}
	if strings.Contains(svg.String(), "NaN") || strings.Contains(svg.String(), "Inf") {
		t.Errorf("%s has points nowhere", f.Name)
	}
	var all strings.Builder
	for d := xml.NewDecoder(&svg); ; {
		k, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all.String()
		}
		if err != nil {
			t.Fatalf("%s: %v", f.Name, err)
		}
		if c, is := k.(xml.CharData); is {
			all.Write(c)
			all.WriteByte('\n')
		}
	}
}

// TestFigures: each plot is there when it has data, and says when the result is partial.
func TestFigures(t *testing.T) {
	r := sample(t)
	for _, r := range []*Result{r, partial(t, r)} {
		all, err := r.Figures()
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for i := range all {
			names = append(names, all[i].Name)
			if s := texts(t, &all[i]); strings.Contains(s, "PARTIAL") != r.Partial {
				t.Errorf("%s of a result with partial %v says\n%s", all[i].Name, r.Partial, s)
			}
			if all[i].Alt == "" {
				t.Errorf("%s has no words", all[i].Name)
			}
		}
		if got := strings.Join(names, " "); got != "fct goodput queue fairness links uplinks downlinks" {
			t.Errorf("figures %s", got)
		}
	}
}

// TestFiguresOdd: empty, one-point, equal and impossible data are drawn or left out, never a panic.
func TestFiguresOdd(t *testing.T) {
	one := Flow{Size: 1, Acked: 1e-6, Received: 1e-6}
	for name, r := range map[string]*Result{
		"nothing":     {},
		"one of each": {Flows: []Flow{one}, Line: []Bin{{PerPlane: []float64{0}}}, Links: []Link{{Name: "0/leaf0>spine0"}}},
		"no time":     {Flows: []Flow{{Size: 5}, {Size: 5}}, Line: []Bin{{}, {}}},
		"none done":   {Flows: []Flow{{Received: -1, Acked: -1}}},
		"not finite": {Line: []Bin{{Goodput: math.NaN(), PerPlane: []float64{math.Inf(1)}}}, Links: []Link{{Name: "0/leaf0>spine0", Use: math.NaN()}},
			Flows: []Flow{one}},
		"uneven planes": {Line: []Bin{{PerPlane: []float64{1, 2}}, {}, {PerPlane: []float64{3}}}, Setup: Setup{Planes: 2}},
		"names": {Links: []Link{{Name: ""}, {Name: ">"}, {Name: "leaf0>spine0"}, {Name: "0/leaf>spine1", Use: 3},
			{Name: "0/leaf99999999999999999999>spine1"}, {Name: "0/leaf1>spine9", Plane: -4, Use: -1}}},
		"far apart": {Links: []Link{{Name: "0/leaf9999999>spine9999999", Use: 1}}},
		"many": {Flows: repeat(5000, one), Links: repeat(200, Link{Name: "0/leaf3>spine2", Use: 0.5}),
			Line: repeat(300, Bin{PerPlane: make([]float64, 16), Goodput: 1})},
	} {
		all, err := r.Figures()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for i := range all {
			texts(t, &all[i])
		}
		if err := r.WriteHTML(io.Discard); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func repeat[T any](n int, x T) []T {
	all := make([]T, n)
	for i := range all {
		all[i] = x
	}
	return all
}

// TestThin: the ends stay, the order too, and no more than the bound.
func TestThin(t *testing.T) {
	for _, n := range []int{0, 1, 2, pointsMost, pointsMost + 1, 123_456} {
		at := thin(n)
		if len(at) != min(n, pointsMost) || n > 0 && (at[0] != 0 || at[len(at)-1] != n-1) {
			t.Errorf("of %d: %d places", n, len(at))
		}
		for i := 1; i < len(at); i++ {
			if at[i] <= at[i-1] {
				t.Fatalf("of %d: place %d after %d", n, at[i], at[i-1])
			}
		}
	}
}

func TestCompare(t *testing.T) {
	var all []*Result
	var losses []float64
	for i, kind := range []string{"metaroce", "rocev2", "metaroce", "rocev2", "metaroce"} {
		r := sample(t)
		r.Setup.Transport, r.Setup.Planes, r.Groups[0].Size, r.Summary.GoodputShare = kind, 1+i/2, 1<<(16+i), 0.9-float64(i)/10
		r.Partial = i == 3
		all, losses = append(all, r), append(losses, float64(i/2)/100)
	}
	for _, x := range []struct {
		x string
		o CompareOptions
	}{{"planes", CompareOptions{}}, {"size_bytes", CompareOptions{Y: "busbw_bps", LogX: true}}, {"loss", CompareOptions{X: losses, Title: "by loss"}},
		{"hosts", CompareOptions{Y: "fct_max_s"}}, {"virtual_s", CompareOptions{LogX: true, X: []float64{0, 1, 2, math.NaN(), 4}}}} {
		f, err := Compare(all, x.x, x.o)
		if err != nil {
			t.Errorf("%s: %v", x.x, err)
			continue
		}
		s := texts(t, f)
		whole := x.x == "virtual_s" // the partial one has no value there
		if !strings.Contains(s, "metaroce") || !strings.Contains(s, "rocev2") || strings.Contains(s, "1 PARTIAL") == whole {
			t.Errorf("%s says\n%s", x.x, s)
		}
	}
	for _, none := range [][]*Result{nil, {{}}, {{Groups: []Group{{}}}}} {
		f, err := Compare(none, "size_bytes", CompareOptions{LogX: true})
		if err != nil {
			t.Fatal(err)
		}
		texts(t, f)
	}
	for _, x := range []string{"plans", "topology", "trim", ""} {
		if _, err := Compare(all, x, CompareOptions{}); err == nil {
			t.Errorf("compared by %q", x)
		}
	}
	if _, err := Compare(all, "planes", CompareOptions{X: losses[:2]}); err == nil {
		t.Error("two values for five results")
	}
}

// TestHeat: every link is a cell of its own shade; more cells than can be drawn become means of the planes, or no map.
func TestHeat(t *testing.T) {
	for _, x := range []struct {
		planes, leaves, spines int
		want                   string
	}{{1, 4, 3, "spine"}, {2, 4, 3, "plane 1 …"}, {16, 60, 60, "mean of 16 planes"}, {1, 65, 64, ""}} {
		r := &Result{}
		for p := range x.planes {
			for l := range x.leaves {
				for s := range x.spines {
					r.Links = append(r.Links, Link{Name: fmt.Sprintf("%d/leaf%d>spine%d", p, l, s), Plane: p, Use: float64(l) / 100})
				}
			}
		}
		f, err := r.uplinks()
		switch {
		case err != nil:
			t.Error(err)
		case f == nil:
			if x.want != "" {
				t.Errorf("%+v: no map", x)
			}
		case x.want == "" || !strings.Contains(f.plot.X.Label.Text, x.want):
			t.Errorf("%+v: %q", x, f.plot.X.Label.Text)
		}
		if f, _ := r.downlinks(); f != nil {
			t.Errorf("%+v: a map of links that are not there", x)
		}
	}
}
