// Package text is what the program's commands print is made of: text from
// elsewhere that is safe to print, and amounts in words.
package text

import (
	"fmt"
	"strings"
	"unicode"
)

// Clean makes text from elsewhere safe to print: it has no control characters,
// ends no line, and has nothing beside it read in another order.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp) {
			return '?'
		}
		return r
	}, s)
}

// CleanLines is Clean for text of several lines, whose tabs stay.
func CleanLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		cells := strings.Split(line, "\t")
		for j, cell := range cells {
			cells[j] = Clean(cell)
		}
		lines[i] = strings.Join(cells, "\t")
	}
	return strings.Join(lines, "\n")
}

// Bytes says how many bytes that is, in units of 1000.
func Bytes(n int64) string {
	const units = "kMGTPE"
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n)/1000, 0
	for value >= 999.95 {
		value /= 1000
		unit++
	}
	return fmt.Sprintf("%.1f %cB", value, units[unit])
}
