INSERT INTO migrated VALUES (1, 'a');
INSERT INTO migrated VALUES (2, 'b');
