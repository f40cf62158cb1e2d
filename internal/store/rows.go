package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/cay-run/cay"
)

// mostRows is how many rows one statement is given.
const mostRows = 100

// given is the beginning of a statement to which rows of values are a table of that
// name. It has one of few lengths, so that its text is parsed once: what is left over
// are rows of empty texts and zeros.
func given(columns, types string, rows [][]any) (text string, args []any) {
	kinds := strings.Split(types, ", ")
	size := mostRows
	for _, fewer := range []int{30, 10, 3, 1} {
		if len(rows) <= fewer {
			size = fewer
		}
	}
	tuples := make([]string, size)
	for i := range tuples {
		cells := make([]string, len(kinds))
		for k, kind := range kinds {
			var v any = 0
			switch {
			case i < len(rows):
				v = rows[i][k]
			case kind == "TEXT":
				v = ""
			}
			args = append(args, v)
			cells[k] = fmt.Sprintf("CAST($%d AS %s)", len(args), kind)
		}
		tuples[i] = "(" + strings.Join(cells, ", ") + ")"
	}
	return fmt.Sprintf("WITH given (%s) AS (VALUES %s) ", columns, strings.Join(tuples, ", ")), args
}

// inRows has a statement change what is given, in as many runs as it takes.
func inRows(ctx context.Context, tx *sql.Tx, columns, types string, rows [][]any, statement string) error {
	for some := range slices.Chunk(rows, mostRows) {
		text, args := given(columns, types, some)
		if _, err := tx.ExecContext(ctx, text+statement, args...); err != nil {
			return err
		}
	}
	return nil
}

// asJSON is a value of plain fields as a column has it.
func asJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil { // plain fields always marshal
		panic(err)
	}
	return string(text)
}

// fromJSON reads such a column, unless its row could not be read.
func fromJSON(err error, text string, to any) error {
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(text), to); err != nil {
		return cay.Wrap(cay.Internal, err, "a record is damaged")
	}
	return nil
}
