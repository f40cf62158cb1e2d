package store

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cay-run/cay/internal/store/pgtest"
)

// TestSchemasAgree holds the two databases to the same tables: columns with
// type, default and whether they may be null, primary keys and indexes.
func TestSchemasAgree(t *testing.T) {
	lite, err := Open(t.Context(), filepath.Join(t.TempDir(), "cay.db"), clearText{})
	if err != nil {
		t.Fatal(err)
	}
	defer lite.Close()
	server := pgtest.Start(t)
	pg, err := OpenPostgres(t.Context(), PostgresConfig{URL: server.URL(server.Database(t, ""))}, clearText{})
	if err != nil {
		t.Fatal(err)
	}
	defer pg.Close()
	one := schemaOf(t, lite.reader, `
SELECT m.name || '.' || c.name || ' ' || lower(c.type) || CASE WHEN c."notnull" = 0 AND c.pk = 0 THEN ' null' ELSE '' END
    || COALESCE(' default ' || c.dflt_value, '') || CASE WHEN c.pk > 0 THEN ' key ' || c.pk ELSE '' END
FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite%' AND m.name <> 'goose_db_version'
UNION ALL SELECT 'index ' || i.name || ' of ' || m.name || ' ' || i."unique" || ' ' || (SELECT string_agg(c.name, ',' ORDER BY c.seqno) FROM pragma_index_info(i.name) c)
FROM sqlite_master m, pragma_index_list(m.name) i WHERE m.type = 'table' AND i.origin = 'c'
UNION ALL SELECT 'reference of ' || m.name || '.' || f."from" || ' to ' || f."table" || CASE WHEN f.on_delete = 'CASCADE' THEN ' cascade' ELSE '' END
FROM sqlite_master m, pragma_foreign_key_list(m.name) f WHERE m.type = 'table'
UNION ALL SELECT 'unique ' || m.name || ' ' || (SELECT string_agg(c.name, ',' ORDER BY c.seqno) FROM pragma_index_info(i.name) c)
FROM sqlite_master m, pragma_index_list(m.name) i WHERE m.type = 'table' AND i.origin = 'u'
ORDER BY 1`)
	other := schemaOf(t, pg.reader, `
SELECT * FROM (
SELECT c.table_name || '.' || c.column_name || ' ' || c.data_type || CASE WHEN c.is_nullable = 'YES' THEN ' null' ELSE '' END
    || COALESCE(' default ' || replace(c.column_default, '::text', ''), '')
    || COALESCE((SELECT ' key ' || k.ordinal_position FROM information_schema.key_column_usage k JOIN information_schema.table_constraints t
        ON t.constraint_name = k.constraint_name AND t.table_name = k.table_name
        WHERE t.constraint_type = 'PRIMARY KEY' AND t.table_schema = 'public' AND k.table_name = c.table_name AND k.column_name = c.column_name), '') AS line
FROM information_schema.columns c WHERE c.table_schema = 'public' AND c.table_name NOT IN ('goose_db_version', 'audit_waiting')
UNION ALL SELECT 'index ' || i.relname || ' of ' || t.relname || ' ' || x.indisunique::int || ' ' ||
    (SELECT string_agg(a.attname, ',' ORDER BY n.at) FROM unnest(x.indkey) WITH ORDINALITY n (col, at) JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = n.col)
FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid
WHERE t.relnamespace = 'public'::regnamespace AND NOT EXISTS (SELECT 1 FROM pg_constraint k WHERE k.conindid = i.oid)
UNION ALL SELECT 'reference of ' || k.conrelid::regclass || '.' || a.attname || ' to ' || k.confrelid::regclass || CASE WHEN k.confdeltype = 'c' THEN ' cascade' ELSE '' END
FROM pg_constraint k JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = k.conkey[1] WHERE k.contype = 'f' AND k.connamespace = 'public'::regnamespace
UNION ALL SELECT 'unique ' || k.conrelid::regclass || ' ' || (SELECT string_agg(a.attname, ',' ORDER BY n.at) FROM unnest(k.conkey) WITH ORDINALITY n (col, at)
    JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = n.col) FROM pg_constraint k WHERE k.contype = 'u' AND k.connamespace = 'public'::regnamespace
) l ORDER BY line COLLATE "C"`)
	if len(one) < 300 {
		t.Fatalf("only %d lines of a schema were read", len(one))
	}
	if d := cmp.Diff(one, other); d != "" {
		t.Errorf("SQLite and PostgreSQL differ (-SQLite +PostgreSQL):\n%s", d)
	}
}

func schemaOf(t *testing.T, db *sql.DB, query string) []string {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query)
	out, err := collect(rows, err, func(row scanner) (line string, err error) {
		err = row.Scan(&line)
		return strings.TrimSpace(line), err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// FuzzTextInPostgres has every text come back as it went, and stay different from
// any other.
func FuzzTextInPostgres(f *testing.F) {
	for _, text := range []string{"", "plain", "zero \x00", "\xff\xfe", "mark \U0010FFFF", "\U0010FFFF00", "ü\x00\U0010FFFFx"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		kept := toPostgres(text)
		if strings.ContainsRune(kept, 0) || strings.ToValidUTF8(kept, "?") != kept {
			t.Errorf("%q is kept as %q", text, kept)
		}
		if got := fromPostgres(kept); got != text {
			t.Errorf("%q comes back as %q", text, got)
		}
	})
}
