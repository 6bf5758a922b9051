// Package units reads and prints sizes, rates, times and shares the way people write them: 256KiB, 10Gbit, 5us, 1%.
package units

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// split separates the number in front from the unit behind it.
func split(s string) (float64, string, error) {
	s = strings.TrimSpace(s)
	i := 0
	for i < len(s) && (s[i] >= '0' && s[i] <= '9' || s[i] == '.' || s[i] == '-' || s[i] == '+') {
		i++
	}
	v, err := strconv.ParseFloat(s[:i], 64)
	if err != nil {
		return 0, "", fmt.Errorf("%q is not a number with a unit", s)
	}
	if v < 0 {
		return 0, "", fmt.Errorf("%q is negative", s)
	}
	return v, strings.TrimSpace(s[i:]), nil
}

func scaled(s, what, example string, table map[string]float64) (uint64, error) {
	v, unit, err := split(s)
	if err != nil {
		return 0, fmt.Errorf("%w; want %s such as %s", err, what, example)
	}
	f, ok := table[strings.ToLower(unit)]
	if !ok {
		return 0, fmt.Errorf("unknown unit %q in %q; want %s such as %s", unit, s, what, example)
	}
	v *= f
	if v > math.MaxInt64 {
		return 0, fmt.Errorf("%q is too large", s)
	}
	return uint64(math.Round(v)), nil
}

var byteUnits = map[string]float64{
	"": 1, "b": 1,
	"k": 1 << 10, "kib": 1 << 10, "kb": 1e3,
	"m": 1 << 20, "mib": 1 << 20, "mb": 1e6,
	"g": 1 << 30, "gib": 1 << 30, "gb": 1e9,
}

// Bytes reads a size: 4096, 256KiB, 1MiB; k, m and g alone are binary.
func Bytes(s string) (uint64, error) { return scaled(s, "a size", "256KiB", byteUnits) }

var rateUnits = map[string]float64{
	"bit": 1, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12,
	"bps": 1, "kbps": 1e3, "mbps": 1e6, "gbps": 1e9, "tbps": 1e12,
	"bit/s": 1, "kbit/s": 1e3, "mbit/s": 1e6, "gbit/s": 1e9, "tbit/s": 1e12,
}

// Rate reads a rate in bits per second: 10Gbit, 400Mbit/s.
func Rate(s string) (uint64, error) { return scaled(s, "a rate", "10Gbit", rateUnits) }

// Duration reads a time: 5us, 1.5ms, 10s. A bare 0 is a time too.
func Duration(s string) (time.Duration, error) {
	s = strings.TrimSpace(s)
	if s == "0" {
		return 0, nil
	}
	d, err := time.ParseDuration(strings.ReplaceAll(s, "sec", "s"))
	if err != nil {
		return 0, fmt.Errorf("%q is not a time such as 5us, 10ms or 2s", s)
	}
	if d < 0 {
		return 0, fmt.Errorf("%q is negative", s)
	}
	return d, nil
}

// Share reads a probability: 1%, 0.5 %, 0.01.
func Share(s string) (float64, error) {
	v, unit, err := split(s)
	if err == nil && unit == "%" {
		v /= 100
	} else if err == nil && unit != "" {
		err = fmt.Errorf("unknown unit %q in %q", unit, s)
	}
	if err != nil {
		return 0, fmt.Errorf("%w; want a share such as 1%%", err)
	}
	if v > 1 {
		return 0, fmt.Errorf("%q is more than 100%%", s)
	}
	return v, nil
}

// FormatBytes prints a size in binary units.
func FormatBytes(n uint64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 10<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 10<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}

// FormatRate prints bits per second in decimal units.
func FormatRate(bps uint64) string {
	switch {
	case bps == 0:
		return "unlimited"
	case bps >= 1e9:
		return strconv.FormatFloat(float64(bps)/1e9, 'g', 4, 64) + " Gbit/s"
	case bps >= 1e6:
		return strconv.FormatFloat(float64(bps)/1e6, 'g', 4, 64) + " Mbit/s"
	}
	return strconv.FormatUint(bps, 10) + " bit/s"
}
