package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/cay-run/cay/internal/cli/text"
)

// printJSON prints a value as a program wants it. Empty lists are lists.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// width is that of the terminal which w is, or 0.
func width(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return columns
}

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// table is rows of text under a header.
type table struct {
	header []string
	rows   [][]string
}

// add adds a row, whose texts may be from elsewhere.
func (t *table) add(cells ...string) {
	row := make([]string, len(cells))
	for i, cell := range cells {
		row[i] = clean(cell)
	}
	t.rows = append(t.rows, row)
}

const (
	gap     = "  "
	minimum = 6 // a column's width when it must give way
)

// print writes the table, no wider than a terminal of that many columns; 0
// means any. The first column is never cut: it is what people copy.
func (t *table) print(w io.Writer, columns int) {
	all := append([][]string{t.header}, t.rows...)
	widths := make([]int, len(t.header))
	total := len(gap) * (len(widths) - 1)
	for i := range widths {
		for _, row := range all {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
		total += widths[i]
	}
	for columns > 0 && total > columns {
		widest := 1
		for i := 2; i < len(widths); i++ {
			if widths[i] > widths[widest] {
				widest = i
			}
		}
		if widest >= len(widths) || widths[widest] <= minimum {
			break
		}
		widths[widest]--
		total--
	}
	for _, row := range all {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = fit(cell, widths[i])
		}
		fmt.Fprintln(w, strings.TrimRight(strings.Join(cells, gap), " "))
	}
}

// fit cuts or fills a text to n characters.
func fit(s string, n int) string {
	have := utf8.RuneCountInString(s)
	if have > n {
		return string([]rune(s)[:n-1]) + "…"
	}
	return s + strings.Repeat(" ", n-have)
}

// clean and volume stand at nearly every print: their names are short.
var (
	clean  = text.Clean
	volume = text.Bytes
)

// ago says how long ago a time was, or how far ahead it is, in one unit.
func ago(t, now time.Time) string {
	d := now.Sub(t)
	if d < 0 {
		return "in " + unit(-d)
	}
	return unit(d) + " ago"
}

func unit(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

func size(mb int) string {
	if mb >= 1024 && mb%1024 == 0 {
		return fmt.Sprintf("%d GB", mb/1024)
	}
	return fmt.Sprintf("%d MB", mb)
}

// wait shows that work goes on, on a terminal.
func (a *app) wait(what string, work func() error) error {
	return a.watch(func() string { return what }, work)
}

// watch is wait with a text that changes; many goroutines may ask for it.
func (a *app) watch(what func() string, work func() error) error {
	if !isTerminal(a.err) || a.json {
		return work()
	}
	done := make(chan struct{})
	var shown sync.WaitGroup
	shown.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		defer fmt.Fprint(a.err, "\r\x1b[K")
		begun := time.Now()
		for i := 0; ; i++ {
			fmt.Fprintf(a.err, "\r%c %s %s\x1b[K", []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")[i%10], what(), unit(time.Since(begun)))
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	})
	err := work()
	close(done)
	shown.Wait()
	return err
}
