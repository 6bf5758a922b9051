package result

import (
	"bytes"
	"io"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/metaroce/metaroce/internal/rng"
)

// spoil puts odd values into some of the fields.
func spoil(r *rng.Source, v reflect.Value) {
	floats := []float64{0, -1, 1, 1e-300, 1e300, -1e300, math.MaxFloat64, 5e-324, 1e9, -1e-9}
	ints := []int64{0, -1, 1, math.MaxInt64, math.MinInt64, 1 << 31, 1e6, 17}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			spoil(r, v.Field(i))
		}
	case reflect.Slice:
		if r.Chance(0.1) {
			v.SetLen(0)
		}
		for i := range v.Len() {
			spoil(r, v.Index(i))
		}
	case reflect.Float64:
		if r.Chance(0.1) {
			v.SetFloat(floats[r.IntN(len(floats))])
		}
	case reflect.Int, reflect.Int64:
		if r.Chance(0.1) {
			v.SetInt(ints[r.IntN(len(ints))])
		}
	case reflect.Uint64:
		if r.Chance(0.1) {
			v.SetUint(uint64(ints[r.IntN(len(ints))]))
		}
	case reflect.String:
		if r.Chance(0.1) {
			v.SetString([]string{"", "\x1b[2J", "<script>", "0/leaf999999999>spine999999999", "0/leaf1>spine2", "9223372036854775807/leaf1>spine2", "1/", ">", "0/leaf-1>spine-2"}[r.IntN(9)])
		}
	}
}

// TestHostile: whatever a result says that has the right hash, reports of it end, and soon.
func TestHostile(t *testing.T) {
	r := rng.New(7, "hostile")
	for trial := range 200 {
		x := sample(t)
		spoil(r, reflect.ValueOf(x).Elem())
		if err := x.Seal(); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := x.WriteJSON(&b); err != nil {
			t.Fatal(err)
		}
		y, err := ReadJSON(&b)
		if err != nil {
			continue // text that is no UTF-8 does not come back
		}
		began := time.Now()
		figures, err := y.Figures()
		if err == nil {
			err = y.writeHTML(io.Discard, figures)
		}
		for i := range figures {
			if e := figures[i].WriteSVG(io.Discard); err == nil {
				err = e
			}
		}
		for _, f := range []func(io.Writer) error{y.Text, y.WriteFlowsCSV, y.WriteLinksCSV, y.WriteLineCSV, y.WriteGroupsCSV, y.WriteSummaryCSV} {
			if e := f(io.Discard); err == nil {
				err = e
			}
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Fatalf("trial %d: reports took %v", trial, took)
		}
		if err != nil {
			t.Logf("trial %d: %v", trial, err)
		}
	}
}
