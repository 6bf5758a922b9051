package impair

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/metaroce/metaroce/internal/mono"
)

type unit struct {
	name  string
	scale float64
}

// The first unit of each scale is the one printed.
var (
	rateUnits = []unit{
		{"Tbit", 1e12}, {"Gbit", 1e9}, {"Mbit", 1e6}, {"kbit", 1e3}, {"bit", 1},
		{"Tbit/s", 1e12}, {"Gbit/s", 1e9}, {"Mbit/s", 1e6}, {"kbit/s", 1e3}, {"bit/s", 1},
		{"Tbps", 1e12}, {"Gbps", 1e9}, {"Mbps", 1e6}, {"kbps", 1e3}, {"bps", 1},
	}
	sizeUnits = []unit{
		{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"KB", 1e3}, {"", 1},
	}
	timeUnits = []unit{
		{"s", 1e9}, {"ms", 1e6}, {"us", 1e3}, {"ns", 1}, {"µs", 1e3}, {"μs", 1e3},
	}
)

// ParseRate reads bits per second: 10Gbit, 2.5Gbit/s, 100Mbps.
func ParseRate(s string) (uint64, error) {
	v, err := parseUnits(s, rateUnits, "a rate such as 10Gbit")
	if err == nil && v > 1e14 {
		return 0, fmt.Errorf("%q is over 100 Tbit/s", s)
	}
	return uint64(v), err
}

// ParseSize reads bytes: 256KiB, 1MiB, 1500.
func ParseSize(s string) (int, error) {
	v, err := parseUnits(s, sizeUnits, "a size such as 256KiB")
	if err == nil && v > 1<<40 {
		return 0, fmt.Errorf("%q is over 1 TiB", s)
	}
	return int(v), err
}

// ParseDuration reads a time: 20us, 1.5ms, 2s.
func ParseDuration(s string) (mono.Duration, error) {
	v, err := parseUnits(s, timeUnits, "a time such as 20us")
	if err == nil && v > 3.6e12 {
		return 0, fmt.Errorf("%q is over an hour", s)
	}
	return mono.Duration(v), err
}

// ParseShare reads a percentage. A bare number is refused, because 1 could mean 1 % or all.
func ParseShare(s string) (float64, error) {
	n, ok := strings.CutSuffix(s, "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(n), 64)
	switch {
	case err != nil:
		return 0, fmt.Errorf("%q is not a share such as 1%%", s)
	case !ok && v != 0:
		return 0, fmt.Errorf("%q needs a percent sign: %s%% or %v%%", s, n, v*100)
	case !(v >= 0 && v <= 100):
		return 0, fmt.Errorf("%q is not within 0%% and 100%%", s)
	}
	return v / 100, nil
}

func parseUnits(s string, units []unit, want string) (float64, error) {
	num := s
	if i := strings.IndexFunc(s, func(r rune) bool { return !strings.ContainsRune("0123456789.", r) }); i >= 0 {
		num = s[:i]
	}
	v, err := strconv.ParseFloat(num, 64)
	if err != nil || math.IsInf(v, 0) {
		return 0, fmt.Errorf("%q is not %s", s, want)
	}
	name := strings.TrimSpace(s[len(num):])
	for _, u := range units {
		if u.name == name {
			return math.Round(v * u.scale), nil
		}
	}
	for _, u := range units { // 10gbit, 64kib: clear enough; exact names came first
		if strings.EqualFold(u.name, name) {
			return math.Round(v * u.scale), nil
		}
	}
	if v == 0 && name == "" {
		return 0, nil
	}
	return 0, fmt.Errorf("%q is not %s", s, want)
}

// formatUnits prints v in the largest unit that holds it exactly, at the least in whole smallest ones.
func formatUnits(v float64, units []unit) string {
	for _, u := range units {
		if q := v / u.scale; q >= 1 && q == math.Trunc(q) || u.scale == 1 {
			return strconv.FormatFloat(q, 'f', -1, 64) + u.name
		}
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

func formatShare(v float64) string { return strconv.FormatFloat(v*100, 'g', 12, 64) + "%" }
