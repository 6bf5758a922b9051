package labfile

import "strings"

// Nearest returns the known word that looks most like s, or "" when none is close enough to be meant.
func Nearest(s string, known []string) string {
	best, bestDist := "", 0
	for _, k := range known {
		d := distance(strings.ToLower(s), strings.ToLower(k))
		if best == "" || d < bestDist {
			best, bestDist = k, d
		}
	}
	if best == "" || bestDist > max(1, len(s)/3) || bestDist >= len(s) && bestDist >= len(best) {
		return ""
	}
	return best
}

// distance is the number of single-letter edits between a and b; a swap of neighbours counts once.
func distance(a, b string) int {
	prev2, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}
