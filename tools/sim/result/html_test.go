package result

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

// read walks a page: all text, and what is wrong with it as a page that stands alone.
func read(t *testing.T, page []byte) (text string) {
	t.Helper()
	fetches := regexp.MustCompile(`(?i)url\(|@import|https?:|//[a-z]|javascript:`)
	var all strings.Builder
	var walk func(n *html.Node)
	walk = func(n *html.Node) {
		switch n.Type {
		case html.TextNode:
			all.WriteString(n.Data + "\n")
			if n.Parent.Data == "style" && fetches.MatchString(n.Data) {
				t.Errorf("the style fetches: %.200s", n.Data)
			}
		case html.ElementNode:
			switch n.Data {
			case "script", "link", "iframe", "object", "embed", "img", "image", "video", "audio", "source", "base", "form", "use", "foreignObject", "a":
				t.Errorf("there is a <%s>", n.Data)
			}
			for _, a := range n.Attr {
				if strings.HasPrefix(a.Key, "on") || a.Key == "src" || a.Key == "href" || a.Key == "srcset" || a.Namespace == "xlink" {
					t.Errorf("<%s %s=%q>", n.Data, a.Key, a.Val)
				}
				if a.Key != "xmlns" && a.Namespace != "xmlns" && a.Key != "aria-label" && a.Key != "content" && fetches.MatchString(a.Val) {
					t.Errorf("<%s %s=%q> fetches", n.Data, a.Key, a.Val)
				}
			}
		default:
		}
		for c := range n.ChildNodes() {
			walk(c)
		}
	}
	root, err := html.Parse(bytes.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	walk(root)
	return all.String()
}

// TestHTML: the page stands alone, says all that it should, and a plan's name is text and nothing else.
func TestHTML(t *testing.T) {
	r := sample(t)
	r.Setup.Topology = `</td></table><img src="http://elsewhere/x.png" onerror=alert(1)>`
	r.Links[0].Name, r.Groups[0].Name = `0/<svg onload=x>`, `"><a href="//elsewhere">`
	r.Flows[2].Error = "<style>@import url(//elsewhere/a.css)</style>"
	for _, r := range []*Result{r, partial(t, r)} {
		var b bytes.Buffer
		if err := r.WriteHTML(&b); err != nil {
			t.Fatal(err)
		}
		text := read(t, b.Bytes())
		for _, want := range []string{r.Plan, r.Hash, r.Commit, "7",
			r.Setup.Topology, "4180 B on the wire", "RTT 8.30 us", "ECN 85.3 to 329.1 KiB", "no PFC", "metaroce",
			"busbw(GB/s)", "1048576", r.Groups[0].Name, r.Links[0].Name, "The slowest flows", "31.00", "What failed", r.Flows[2].Error, "Flow completion time",
			"Load by plane", "4 retransmissions", "plane 1 down"} {
			if !strings.Contains(text, want) {
				t.Errorf("the page does not say %q", want)
			}
		}
		big := strings.Index(b.String(), "<strong>PARTIAL</strong>")
		if r.Partial != (big > 0 && big < strings.Index(b.String(), "<h1>")) {
			t.Errorf("partial %v: PARTIAL stands at %d", r.Partial, big)
		}
		if r.Partial && (!strings.Contains(text, r.Why) || !strings.Contains(text, "PARTIAL: "+r.Plan)) {
			t.Errorf("a partial report does not say why, or not in its title")
		}
		if !strings.Contains(b.String(), "prefers-color-scheme: dark") {
			t.Error("nothing for the dark")
		}
	}
}

// TestHTMLTables: of many flows the slowest are listed, slowest first, and how many are not.
func TestHTMLTables(t *testing.T) {
	r := &Result{}
	for i := range 200 {
		r.Flows = append(r.Flows, Flow{ID: i, Size: 1, Received: 1e-6, Acked: float64(1+(i*37)%200) * 1e-6})
	}
	var p page
	r.flowSheets(&p)
	if len(p.Slowest.Rows) != shown || p.Slowest.More != 150 || p.Slowest.Rows[0][7] != "200.00" || p.Slowest.Rows[49][7] != "151.00" {
		t.Errorf("%d rows, %d more, first %v", len(p.Slowest.Rows), p.Slowest.More, p.Slowest.Rows[0])
	}
}
