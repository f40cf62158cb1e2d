package store

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cay-run/cay"
)

// Copied is how many records of a table were copied.
type Copied struct {
	Table string
	Rows  int64
}

// Import copies all records of one database, which no server writes meanwhile,
// into another one that has none: all, or nothing. The copy is read back and
// compared before it counts.
func Import(ctx context.Context, from, into *DB) (out []Copied, err error) {
	tables, err := from.tables(ctx)
	if err != nil {
		return nil, err
	}
	err = into.tx(ctx, func(tx *sql.Tx) error {
		// A server that starts there meanwhile waits, and finds the records.
		if err := into.hold(ctx, tx, `LOCK TABLE teams, nodes IN ACCESS EXCLUSIVE MODE`); err != nil {
			return err
		}
		for _, t := range tables {
			var used bool
			if err := tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM `+t.name+`)`).Scan(&used); err != nil {
				return err
			}
			if used {
				return cay.Errorf(cay.Conflict, "the database has records already, in the table %s", t.name).
					WithHint("import into a new database: createdb NAME")
			}
		}
		out, err = copyTables(ctx, tables, from.reader, tx, "$")
		return err
	})
	return out, err
}

// table is a table and its columns.
type table struct{ name, columns string }

// tables lists the tables of an SQLite database, each after those that it refers
// to: the order of their making.
func (s *DB) tables(ctx context.Context) ([]table, error) {
	rows, err := s.reader.QueryContext(ctx, `SELECT m.name, (SELECT string_agg(c.name, ', ' ORDER BY c.cid) FROM pragma_table_info(m.name) c)
FROM sqlite_master m WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite%' AND m.name NOT IN ('goose_db_version', 'compatible_migrations') ORDER BY m.rowid`)
	return collect(rows, err, func(row scanner) (t table, err error) { return t, row.Scan(&t.name, &t.columns) })
}

// copyTables copies tables and compares what it reads back. Sign begins a parameter's
// number where it copies to: SQLite takes $1 for a name, and compares each name of a
// statement with all before it.
func copyTables(ctx context.Context, tables []table, from reader, into *sql.Tx, sign string) (out []Copied, err error) {
	for _, t := range tables {
		sent, err := copyTable(ctx, t, from, into, sign)
		if err != nil {
			return nil, err
		}
		found, err := readTable(ctx, t, into, func([]any) error { return nil })
		if err != nil {
			return nil, err
		}
		if sent != found {
			return nil, cay.Errorf(cay.Internal, "the table %s differs after the copy: %d records were read, %d are there", t.name, sent.rows, found.rows).
				WithHint("nothing was copied; check the disks, and both databases")
		}
		out = append(out, Copied{t.name, sent.rows})
	}
	return out, nil
}

// sum is what is compared of a table: how many rows, and the sum of their hashes,
// which is the same in any order.
type sum struct {
	rows   int64
	hashes [4]uint64
}

func (s *sum) add(row []any) {
	h := sha256.New()
	for _, v := range row {
		text := fmt.Sprint(v)
		fmt.Fprintf(h, "%T %d:%s", v, len(text), text)
	}
	digest := h.Sum(nil)
	for i := range s.hashes {
		s.hashes[i] += binary.BigEndian.Uint64(digest[8*i:])
	}
	s.rows++
}

// readTable has a row's values for each, which the next one overwrites.
func readTable(ctx context.Context, t table, q reader, each func([]any) error) (out sum, err error) {
	rows, err := q.QueryContext(ctx, `SELECT `+t.columns+` FROM `+t.name)
	if err != nil {
		return out, dbError(err)
	}
	defer rows.Close()
	row := make([]any, strings.Count(t.columns, ",")+1)
	into := make([]any, len(row))
	for i := range row {
		into[i] = &row[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return out, dbError(err)
		}
		for i, v := range row {
			if b, is := v.([]byte); is {
				row[i] = string(bytes.Clone(b))
			}
		}
		out.add(row)
		if err := each(row); err != nil {
			return out, err
		}
	}
	return out, dbError(rows.Err())
}

// mostParameters is how many values one statement may have: SQLite's bound, which
// is half of PostgreSQL's.
const mostParameters = 30_000

func copyTable(ctx context.Context, t table, from reader, into *sql.Tx, sign string) (sum, error) {
	columns := strings.Count(t.columns, ",") + 1
	most := min(200, mostParameters/columns) * columns
	args := make([]any, 0, most)
	flush := func() error {
		if len(args) == 0 {
			return nil
		}
		var text strings.Builder
		fmt.Fprintf(&text, "INSERT INTO %s (%s) VALUES ", t.name, t.columns)
		for i := range args {
			switch {
			case i == 0:
				text.WriteString("(")
			case i%columns == 0:
				text.WriteString("), (")
			default:
				text.WriteString(", ")
			}
			text.WriteString(sign + strconv.Itoa(i+1))
		}
		text.WriteString(")")
		_, err := into.ExecContext(ctx, text.String(), args...)
		args = args[:0]
		return err
	}
	read, err := readTable(ctx, t, from, func(row []any) error {
		if args = append(args, row...); len(args) < most {
			return nil
		}
		return flush()
	})
	if err == nil {
		err = flush()
	}
	return read, err
}

// backup copies the records of one moment into an SQLite database, with the rows
// of the audit log that wait at the end of the chain.
func (p *postgres) backup(ctx context.Context, s *DB, path string) (err error) {
	lite, err := Open(ctx, path+".part", s.seal)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, lite.Close())
		for _, end := range []string{"", "-wal", "-shm"} {
			_ = os.Remove(path + ".part" + end)
		}
	}()
	tables, err := lite.tables(ctx)
	if err != nil {
		return err
	}
	moment, err := p.aside.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return dbError(err)
	}
	defer func() { _ = moment.Rollback() }()
	rows, err := moment.QueryContext(ctx, `SELECT id, `+auditColumns+`, '', '' FROM audit_waiting`)
	waiting, err := collect(rows, err, scanAudit)
	if err != nil {
		return err
	}
	slices.SortFunc(waiting, func(a, b cay.AuditRow) int { return cmp.Compare(a.Seq, b.Seq) })
	err = lite.tx(ctx, func(tx *sql.Tx) error {
		if _, err := copyTables(ctx, tables, moment, tx, "?"); err != nil {
			return err
		}
		for _, name := range []string{"nodes", "clusters", "join_tokens"} { // they are of machines, not of records
			if _, err := tx.ExecContext(ctx, `DELETE FROM `+name); err != nil {
				return err
			}
		}
		return chain(ctx, tx, waiting)
	})
	if err != nil {
		return err
	}
	return lite.Backup(ctx, path)
}
