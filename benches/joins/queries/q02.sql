-- 0.4 % of the parts.
SELECT s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment
FROM part, partsupp, supplier, nation, region
WHERE p_size = 15
    AND p_type LIKE '%BRASS'
    AND ps_partkey = p_partkey
    AND s_suppkey = ps_suppkey
    AND n_nationkey = s_nationkey
    AND r_regionkey = n_regionkey
    AND r_name = 'EUROPE'
ORDER BY s_acctbal DESC, n_name, s_name, p_partkey
LIMIT 100
