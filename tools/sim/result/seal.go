package result

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
)

// Seal computes Hash: the SHA-256 of the result as JSON without Cost, Commit and Hash itself. It fails where a number is
// not finite, which JSON cannot say.
func (r *Result) Seal() error {
	h, err := r.digest()
	if err != nil {
		return err
	}
	r.Hash = h
	return nil
}

func (r *Result) digest() (string, error) {
	c := *r
	c.Cost, c.Commit, c.Hash = Cost{}, "", ""
	b, err := json.Marshal(&c)
	if err != nil {
		return "", fmt.Errorf("cannot seal the result: %w", err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}

// WriteJSON writes the result as one indented JSON object. It must be sealed.
func (r *Result) WriteJSON(w io.Writer) error {
	if r.Hash == "" {
		return errors.New("the result has no hash: it is not sealed")
	}
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	e.SetEscapeHTML(false) // names of links have a > in them
	return e.Encode(r)
}

// ReadJSON reads what WriteJSON wrote. Cut, changed or foreign text is an error.
func ReadJSON(from io.Reader) (*Result, error) {
	b, err := io.ReadAll(from)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var r Result
	if err := d.Decode(&r); err != nil {
		return nil, fmt.Errorf("not a result of this version: %w", err)
	}
	if len(bytes.TrimSpace(b[d.InputOffset():])) > 0 {
		return nil, errors.New("not a result: something follows it")
	}
	h, err := r.digest()
	switch {
	case err != nil:
		return nil, err
	case r.Hash == "":
		return nil, errors.New("not a result: it has no hash")
	case r.Hash != h:
		return nil, fmt.Errorf("not what was written: its hash is %.16s…, and it says %.16s…", h, r.Hash)
	}
	return &r, nil
}

// Percentile is the nearest-rank percentile of sorted values: the least one that at least percent of a hundred of them do not
// exceed; 0 percent is the least value. Without values it is 0.
func Percentile(sorted []float64, percent float64) float64 {
	n := len(sorted)
	if n == 0 {
		return 0
	}
	rank := int(math.Ceil(percent*float64(n)/100 - 1e-9)) // what rounding added is no rank
	return sorted[min(max(rank, 1), n)-1]
}

// FCT is the time from posting to the sender's completion in seconds; ok is false where there was none.
func (f *Flow) FCT() (seconds float64, ok bool) {
	if f.Start < 0 || f.Acked < 0 || f.Received < 0 || f.Error != "" {
		return 0, false
	}
	return f.Acked - f.Start, true
}
