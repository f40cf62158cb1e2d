// Package near finds the words that a mistyped one may stand for.
package near

import (
	"cmp"
	"slices"
	"strings"
)

// Words lists those of the words that are like one, the nearest first and five at
// most: they contain it or are in it, or are a few letters away.
func Words(word string, words []string) []string {
	word = strings.ToLower(word)
	type candidate struct {
		word string
		far  int
	}
	var found []candidate
	for _, w := range words {
		low := strings.ToLower(w)
		far := distance(word, low)
		if len(word) > 2 && (strings.Contains(low, word) || strings.Contains(word, low)) {
			far = 0
		}
		if far <= 1+min(len(word), len(low))/3 {
			found = append(found, candidate{w, far})
		}
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Compare(a.far, b.far) })
	var out []string
	for _, c := range found[:min(len(found), 5)] {
		out = append(out, c.word)
	}
	return out
}

// distance is how many letters must be changed, put in or taken out (Levenshtein).
func distance(a, b string) int {
	const most = 64 // longer words are like none
	if len(a) > most || len(b) > most {
		return most
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := before
			if a[i] != b[j] {
				change++
			}
			before = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
